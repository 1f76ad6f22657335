"""Tests that a rank completes one weight at a time for a server, and one block at a time to check what it has."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from e2e_processes import run_process, run_ranks
from planned_models import make_folder, ppo_run
from safetensors.torch import load_file
from test_asked_weights import BLOCK, CHILD, CLOSE, HEAD, OUTSIDE, TENSOR, WHOLE
from warm_python import WarmPython

STAND_IN = Path(__file__).parents[2] / "plugins/rlcore_engines/tests/vllm"


@pytest.mark.nightly
def test_no_rank_has_the_whole_model_to_write_it_for_a_server(
    warm_python: WarmPython, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server's log-probs are the policy's after each change of the weights, or the run would have ended."""
    monkeypatch.syspath_prepend(str(STAND_IN))
    from vllm_stand_in import StandIn

    folder, server = make_folder(tmp_path / "start"), StandIn()
    values = ppo_run(folder, "none", rollouts=11, batch_size=11, epochs=1, micro_batch_tokens=40)
    values["sampler"] = {"name": "vllm", "url": server.url}
    ranks = dict[str, list[dict[str, list[int]]]]()
    try:
        for shard, world in (("none", 1), ("fsdp", 2)):
            place = tmp_path / shard
            place.mkdir()
            run = values["run"] | {"root": str(place), "steps": 2, "shard": shard}
            (place / "run.json").write_text(json.dumps(values | {"run": run}))
            arguments = [CHILD, str(place), str(place / "run.json"), "vllm"]
            done = run_ranks(warm_python, world, arguments) if world > 1 else run_process([sys.executable, *arguments])
            assert done.returncode == 0, done.stderr[-3000:]
            ranks[shard] = [json.loads((place / f"asked-{rank}.json").read_text()) for rank in range(world)]
    finally:
        server.close()
    assert server.calls.count("/update_weights") == 4  # in each of two steps of each run
    for rank in ranks["fsdp"]:
        print([rank[name][1] for name in ("held", "sampling", "scoring")], file=sys.stderr)
        assert rank["held"][1] == 0
        # The check completes a block while the one before is freed; its log-probs take less than the largest weight.
        assert TENSOR <= rank["sampling"][1] <= OUTSIDE + HEAD + 2 * BLOCK + TENSOR < WHOLE / 2
    one, two = (load_file(tmp_path / shard / "run/model/model.safetensors") for shard in ("none", "fsdp"))
    start = load_file(folder / "model.safetensors")
    assert min(float((weight - start[name]).abs().max()) for name, weight in one.items()) > 10 * CLOSE
    assert max(float((weight - two[name]).abs().max()) for name, weight in one.items()) <= CLOSE
