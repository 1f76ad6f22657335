"""Watches the size of steps while a run goes on, and warns once if it cannot arrive within its budget."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from rlcore.logging import get_logger
from rlcore_report.health.judged_run import JudgedRun, Verdict
from rlcore_report.health.step_size import LEAST_ROUNDS, READ, step_too_small
from rlcore_report.metric_groups import Series

if TYPE_CHECKING:
    from rlcore.protocols import RunView

CHECKS = tuple(LEAST_ROUNDS * 2**i for i in range(8))
"""Steps since the start of the process at which the run is judged; the last one ends the watch."""


class StepSizeWatch:
    """Collects what `step_too_small` reads, and judges it after 10, 20, 40 ... steps, until it finds something.

    Args:
        total_steps: steps of the whole run; None if only time limits it, and then nothing is judged.
    """

    def __init__(self, total_steps: int | None) -> None:
        self.total_steps, self.num_steps = total_steps, 0
        self.is_done, self.is_recorded = total_steps is None, False
        self._points: dict[str, list[tuple[int, float]]] = {}

    def step(self, step: int, metrics: Mapping[str, float]) -> Verdict | None:
        """Add the metrics of a step; return the verdict if steps are found to be too small now, for the first time."""
        if self.is_done:
            return None
        self.num_steps += 1
        self.add(step, metrics)
        if self.num_steps not in CHECKS:
            return None
        found = step_too_small(JudgedRun(self._series(), planned=self.total_steps or 0))
        is_small = found is not None and found.level != "good"
        self.is_done = is_small or self.num_steps == CHECKS[-1]
        if self.is_done:
            self._points.clear()
        return found if is_small else None

    def add(self, step: int, metrics: Mapping[str, float]) -> None:
        """Add metrics, such as those of an evaluation, without judging."""
        if not self.is_done:
            for name in metrics.keys() & READ:
                self._points.setdefault(name, []).append((step, float(metrics[name])))

    def _series(self) -> dict[str, Series]:
        found = {}
        for name, points in self._points.items():
            steps, values = zip(*points, strict=True)
            found[name] = Series(np.array(steps, dtype=np.int64), np.array(values, dtype=float))
        return found


def warn(run: RunView, verdict: Verdict) -> None:
    """Log a verdict, with the option to change."""
    get_logger("report").warning(
        "steps are too small to arrive within the run", evidence=verdict.evidence,
        set=f"{verdict.option}={verdict.value}" if verdict.option else "more steps", step=run.step,
    )  # fmt: skip
