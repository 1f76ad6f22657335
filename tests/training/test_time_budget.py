"""Tests of the time budget of a run that is resumed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rlcore.checkpoints.checkpoint import Checkpoints
from rlcore.training.loop import fit
from rlcore.training.resume import Saver
from rlcore_testing.small import make_gpt2


@pytest.mark.parametrize(("budget_s", "steps"), [(900, 0), (1e6, 2)])
def test_a_time_budget_includes_the_time_before_a_resume(
    budget_s: float, steps: int, make_trainer: Callable[..., Any], tmp_path: Path
) -> None:
    def make(name: str, **run: Any) -> Any:
        sections = {"run": {"root": str(tmp_path), "name": name, **run}}
        return make_trainer("sft", make_gpt2(), sections=sections, inputs={"samples": ["ab", "cd"]})

    stopped = make("stopped", steps=1)
    stopped.run.progress.elapsed_before_s = 1000.0
    checkpoint = Checkpoints.open(Saver(stopped.run, {}, {}).checkpoint(stopped))
    resumed = make("resumed", time_s=budget_s)
    saver = Saver(resumed.run, {}, {})
    saver.restore(resumed, checkpoint)
    assert resumed.run.progress.elapsed_before_s >= 1000
    resumed.run.progress.total_steps = 2  # ends a run whose time budget is not spent
    fit(resumed, resumed.run, saver)
    assert resumed.run.step == steps
