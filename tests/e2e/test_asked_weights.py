"""Tests that a rank completes only the weights that a sampler asks for, and one block at a time to score."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from e2e_processes import run_process, run_ranks
from planned_models import make_folder, ppo_run
from safetensors.torch import load_file
from warm_python import WarmPython

CHILD = str(Path(__file__).with_name("e2e_asked_weights.py"))
BLOCK = 4 * (4 * 256 * 256 + 3 * 256 * 688 + 2 * 256)
"""Bytes of a block: attention, the feed-forward layer, two norms."""
TENSOR = 4 * 1024 * 256
"""Bytes of the largest weight, the embedding."""
OUTSIDE = 2 * TENSOR + 4 * 256
"""Bytes of the weights outside the blocks: embedding, norm and head."""
HEAD = 4 * (256 * 512 + 512 + 512 + 1)
"""Bytes of the value head."""
WHOLE = OUTSIDE + 6 * BLOCK + HEAD
CLOSE = 1e-6


@pytest.fixture
def train(warm_python: WarmPython, tmp_path: Path) -> Callable[..., list[dict[str, Any]]]:
    """Train with a sampler that asks for `reads`, and return what each rank has counted, in steps after the first."""
    folder = make_folder(tmp_path / "start")

    def run(world: int, reads: str, name: str, shard: str) -> list[dict[str, Any]]:
        values = ppo_run(folder, shard, rollouts=11, batch_size=11, epochs=1, micro_batch_tokens=40)
        place = tmp_path / name
        place.mkdir()
        (place / "run.json").write_text(json.dumps(values | {"run": values["run"] | {"root": str(place), "steps": 2}}))
        arguments = [CHILD, str(place), str(place / "run.json"), reads]
        done = run_ranks(warm_python, world, arguments) if world > 1 else run_process([sys.executable, *arguments])
        assert done.returncode == 0, done.stderr[-3000:]
        found = [json.loads((place / f"asked-{rank}.json").read_text()) for rank in range(world)]
        return [{name: each[1] for name, each in rank.items() if isinstance(each, list)} for rank in found]

    return run


@pytest.mark.nightly
def test_weights_are_gathered_as_far_as_the_sampler_asks_and_scored_one_block_at_a_time(
    train: Callable[..., list[dict[str, Any]]], tmp_path: Path
) -> None:
    train(1, "nothing", "one", "none")
    for rank in train(2, "whole", "whole", "fsdp"):
        assert rank["held"] == WHOLE
        assert rank["sampling"] >= WHOLE
    for rank in train(2, "stream", "stream", "fsdp"):
        assert rank["held"] == 0
        assert rank["streamed"] == WHOLE - HEAD
        assert TENSOR <= rank["sampling"] <= 4 * TENSOR
    ranks = train(2, "nothing", "nothing", "fsdp")
    assert [rank["held"] for rank in ranks] == [0, 0]
    assert max(rank["sampling"] for rank in ranks) < 10_000
    assert ranks[0]["passes"] != ranks[1]["passes"]
    for rank in ranks:  # of the policy and of its reference, one after the other
        assert 2 * OUTSIDE + HEAD + BLOCK <= rank["scoring"] <= 2 * OUTSIDE + HEAD + 2 * BLOCK
    one, *others = (
        load_file(tmp_path / name / "run/model/model.safetensors") for name in ("one", "whole", "stream", "nothing")
    )
    start = load_file(tmp_path / "start/model.safetensors")
    assert min(float((weight - start[name]).abs().max()) for name, weight in one.items()) > 10 * CLOSE
    for other in others:
        assert max(float((weight - other[name]).abs().max()) for name, weight in one.items()) <= CLOSE
