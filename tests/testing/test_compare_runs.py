"""Tests of the kit's comparison of two runs, and of what it restores after a law."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from rlcore.checkpoints.state import save_state
from rlcore_testing.law import LawBroken
from rlcore_testing.rig.compare_runs import check_equal
from rlcore_testing.rig.isolate import isolated
from rlcore_testing.rig.runs import Tiny

SAME: dict[str, Any] = {"step": 2, "loss": 0.5, "weight": 1.0, "kept": 1.0, "moment": 3.0, "seed": 4}


def write_run(root: Path, name: str, **changes: Any) -> Tiny:
    """Write what a run leaves behind, each part of it with one number."""
    values = SAME | changes
    tiny = Tiny(trainer="any", options={}, inputs=(), root=str(root), name=name)
    newest, older = (tiny.dir / "checkpoints" / f"{step:08d}" for step in (values["step"], 1))
    for folder, weight in ((tiny.dir, values["weight"]), (newest, values["kept"]), (older, random.random())):
        (folder / "model").mkdir(parents=True)
        save_file({"w": torch.tensor([weight])}, folder / "model" / "model.safetensors")
    (tiny.dir / "metrics.jsonl").write_text(json.dumps({"step": 1, "loss/total": values["loss"], "time/x": weight}))
    save_state(newest / "trainer.safetensors", {"step": values["step"], "trainer": {"moment": values["moment"]}})
    save_state(newest / "rng.safetensors", {"ranks": [values["seed"]]})
    return tiny


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"loss": 0.6}, "step[0].loss/total differ: 0.5 in one, 0.6"),
        ({"weight": 2.0}, "weights.model.w differ by at most 1.0e+00"),
        ({"kept": 2.0}, "checkpoint.weights.model.w differ by at most 1.0e+00"),
        ({"moment": 3.5}, "checkpoint.trainer.moment differ: 3.0 in one, 3.5"),
        ({"seed": 5}, "checkpoint.random numbers.ranks[0] differ: 4 in one, 5"),
        ({"step": 3}, "checkpoint.step differ: 2 in one, 3"),
    ],
)
def test_any_difference_of_two_runs_is_found(changes: dict[str, Any], said: str, tmp_path: Path) -> None:
    one, other = write_run(tmp_path, "one"), write_run(tmp_path, "other", **changes)
    with pytest.raises(LawBroken) as caught:
        check_equal(one, other, "Do better", checkpoints=True)
    assert f"expected bit-identical runs; {said}" in str(caught.value)
    check_equal(one, write_run(tmp_path, "same"), "Do better", checkpoints=True)
    if said.startswith("checkpoint"):
        check_equal(one, other, "Do better")


def test_a_law_does_not_change_the_global_random_generators() -> None:
    def drawn() -> list[Any]:
        return [random.random(), np.random.rand(), torch.rand(()).item()]  # noqa: NPY002  the global one

    states = random.getstate(), np.random.get_state(), torch.get_rng_state()  # noqa: NPY002
    expected = drawn()
    random.setstate(states[0])
    np.random.set_state(states[1])  # noqa: NPY002
    torch.set_rng_state(states[2])
    with isolated():
        drawn()
    assert drawn() == expected
