"""Tests of the command for several machines, whose launchers here run on one machine."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from e2e_processes import TIMEOUT_S, inherited, newest_checkpoint
from safetensors.torch import load_file

import rlcore
from rlcore_testing.small import make_llama, make_tokenizer

# With a large eps AdamW does not enlarge rounding errors of small gradients.
CONFIG = """
trainer: {name: sft, batch_size: 5, micro_batch_size: 2, optimizer: {lr: 0.003, eps: 0.01}}
model: {path: model}
data: {samples: [[a, bc], [bc, defg], [d, e], [ef, ghi], [gh, a], [i, jklmno], [jk, lm]]}
loggers: []
run: {steps: 3}
"""
MEETING = {
    "c10d": "--rdzv-backend c10d --rdzv-endpoint 127.0.0.1:{port} --rdzv-id my-run",
    "static": "--node-rank {node} --master-addr 127.0.0.1 --master-port {port}",
}
"""How the launchers of two machines find each other."""
CLOSE = 1e-6


def launch(folder: Path, arguments: str) -> subprocess.Popen[bytes]:
    """Start torchrun in a session of its own; its output goes to a file."""
    command = [sys.executable, "-m", "torch.distributed.run", "--nnodes", "2", *arguments.split()]
    with (folder / "output").open("a") as output:
        return subprocess.Popen(
            command, cwd=folder, env=inherited(), start_new_session=True, stdout=output, stderr=output
        )


def free_port() -> int:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        return int(unused.getsockname()[1])


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("meeting", "processes", "option"), [("c10d", 2, "run.shard=fsdp"), ("static", 1, "run.shard=none")]
)
def test_two_machines_learn_what_one_process_learns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, meeting: str, processes: int, option: str
) -> None:
    make_llama().save_pretrained(tmp_path / "model")
    make_tokenizer().save_pretrained(tmp_path / "model")
    (tmp_path / "run.yaml").write_text(CONFIG)
    monkeypatch.chdir(tmp_path)
    rlcore.train(config="run.yaml", run={"name": "one"})
    train = f"--nproc-per-node {processes} -m rlcore train run.yaml run.name=two {option}"
    port = free_port()
    agents = [launch(tmp_path, f"{MEETING[meeting].format(node=node, port=port)} {train}") for node in (0, 1)]
    try:
        codes = [agent.wait(TIMEOUT_S) for agent in agents]
    finally:
        for agent in agents:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(agent.pid, signal.SIGKILL)
    assert codes == [0, 0], (tmp_path / "output").read_text()
    manifest = (newest_checkpoint(tmp_path / "runs/two") / "manifest.json").read_text()
    assert f'"world": {2 * processes}' in manifest
    one, two = (load_file(tmp_path / "runs" / run / "model/model.safetensors") for run in ("one", "two"))
    assert one.keys() == two.keys()
    assert max(float((weight - two[name]).abs().max()) for name, weight in one.items()) <= CLOSE
