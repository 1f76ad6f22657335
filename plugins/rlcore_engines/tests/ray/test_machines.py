"""Ray clusters of several nodes, each with its own raylet and store, on this machine; one of them is lost."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from small_run import write_run

pytestmark = pytest.mark.slow
TIMEOUT_S = 600.0
STORE = 80_000_000


@pytest.mark.nightly
def test_actors_are_spread_over_nodes_and_those_of_a_lost_node_are_replaced_on_the_other() -> None:
    script = Path(__file__).parent / "lost_machine.py"
    found = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert found.returncode == 0, found.stderr[-3000:]
    seen = json.loads(next(line for line in found.stdout.splitlines() if line.startswith('{"nodes"')))
    kept, lost = seen["nodes"]
    assert sorted(seen["before"]) == sorted([kept, lost])
    assert seen["after"] == [kept, kept]
    assert seen["equal"] == [True, True, True]
    assert seen["keeper"] == seen["own"]  # a node that is lost never has the weights


@pytest.fixture
def cluster() -> Iterator[Any]:
    """Start a cluster whose head runs nothing, and two nodes with two processors each."""
    from ray.cluster_utils import Cluster

    found = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "object_store_memory": STORE})
    for _ in range(2):
        found.add_node(num_cpus=2, object_store_memory=STORE)
    yield found
    found.shutdown()


RAY = {"name": "ray", "spread": True, "restarts": 1, "end_timeout_s": 1}
REWARDS = """
import os, pathlib, time

def length(outputs):
    start = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    with pathlib.Path("seen").open("a") as file:
        file.write(f"{start} {os.environ['RANK']} {os.environ['LOCAL_WORLD_SIZE']}\\n")
    while start == 0 and pathlib.Path("runs/two/checkpoints/00000002").exists():
        time.sleep(0.1)  # until this node or the other rank's is lost
    return [float(output.count("a")) for output in outputs]
"""


@pytest.mark.nightly
def test_ranks_of_a_lost_node_start_again_on_the_other_and_continue_from_the_checkpoint(
    tmp_path: Path, cluster: Any
) -> None:
    write_run(tmp_path, REWARDS, name="two", steps=4, processes=2, cluster=RAY)
    given = {name: value for name, value in os.environ.items() if name != "WORLD_SIZE"}
    given["RAY_ADDRESS"] = cluster.address
    process = subprocess.Popen(
        [sys.executable, "-m", "rlcore", "train", "run.yaml"], cwd=tmp_path, env=given,
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    end = time.monotonic() + TIMEOUT_S
    while not (tmp_path / "runs/two/checkpoints/00000002").exists() and process.poll() is None:
        assert time.monotonic() < end
        time.sleep(0.1)
    cluster.remove_node(list(cluster.worker_nodes)[1], allow_graceful=False)
    _, err = process.communicate(timeout=TIMEOUT_S)
    assert process.returncode == 0, err
    assert "is lost: its machine, or the actor that ran it, has ended; all start again (1 of 1)" in err
    seen = {tuple(line.split()) for line in (tmp_path / "seen").read_text().splitlines()}
    assert seen == {("0", "0", "1"), ("0", "1", "1"), ("1", "0", "2"), ("1", "1", "2")}  # on two nodes, then on one
    steps = [json.loads(line)["step"] for line in (tmp_path / "runs/two/metrics.jsonl").open()]
    assert steps == [1, 2, 3, 4]
