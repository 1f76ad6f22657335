"""The metric of a run, read from its metrics.jsonl while the run writes it."""

from __future__ import annotations

import difflib
import json
import math
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import attrs

MOST_AT_ONCE = 4
"""Measurements of one reading that are all kept."""


@attrs.define
class MetricFile:
    """The measurements of one metric.

    Attributes:
        file: metrics.jsonl, which may not exist yet, and which a resumed run replaces by a shorter one.
        metric: name of the metric.
        names: all metrics that the file has.
        last_step: the last step with metrics; 0 without any.
        is_missing: whether an evaluation was written without the metric, which is an evaluation's.
    """

    file: Path
    metric: str
    names: dict[str, None] = attrs.field(factory=dict)
    last_step: int = 0
    is_missing: bool = False
    _offset: int = 0
    _inode: int = 0

    def read(self) -> list[tuple[int, float]]:
        """Return new measurements: step and value, nan for one that is not finite."""
        try:
            with self.file.open("rb") as lines:
                self._seek(lines)
                return [pair for line in lines if (pair := self._take(line)) is not None]
        except OSError:  # the run has not begun to write, or replaces the file just now
            return []

    def _seek(self, lines: Any) -> None:
        """Go on where the last call ended; at the beginning if it is another file."""
        found = os.fstat(lines.fileno())
        if (found.st_ino, found.st_size >= self._offset) != (self._inode, True):
            self._offset, self._inode = 0, found.st_ino
        lines.seek(self._offset)

    def _take(self, line: bytes) -> tuple[int, float] | None:
        """Return the measurement of a line; None if it has none or is not complete."""
        if not line.endswith(b"\n"):
            return None
        self._offset += len(line)
        try:
            row = json.loads(line)
            step = row.pop("step")
        except (ValueError, KeyError, AttributeError, TypeError):
            return None
        if not isinstance(step, int):
            return None
        self.names.update(dict.fromkeys(row))
        self.last_step = step
        if self.metric in row:
            value = row[self.metric]
            return step, float(value) if isinstance(value, int | float) else math.nan
        self.is_missing |= self.metric.startswith("eval/") and any(name.startswith("eval/") for name in row)
        return None


def thinned(measured: Sequence[tuple[int, float]], mode: str, every: int | None = None) -> list[tuple[int, float]]:
    """Return measurements that were read at once; of many, those that count, because storing each takes time.

    These are the best and the last, and, of a population, the first after each `every` steps.
    """
    if len(measured) <= MOST_AT_ONCE:
        return list(measured)
    finite = [pair for pair in measured if math.isfinite(pair[1])]
    best = (max if mode == "max" else min)(finite, key=lambda pair: pair[1], default=measured[-1])
    firsts = {pair[0] // every: pair for pair in reversed(measured)} if every else {}
    return sorted({best, measured[-1], *firsts.values()})


def missing_metric(metric: str, names: Iterable[str]) -> str:
    """Return what is wrong with the name of a metric that a run does not have."""
    known = sorted(names)
    if not known:
        return f"metrics.jsonl has no metrics at all, and so no {metric}: the run ended before its first step"
    near = difflib.get_close_matches(metric, known, n=1)
    hint = f" Did you mean {near[0]}?" if near else ""
    evaluations = [name for name in known if name.startswith("eval/")]
    others = [name for name in known if not name.startswith("eval/")]
    return (
        f"no run has the metric {metric}.{hint} Evaluations have: {', '.join(evaluations) or 'nothing'}. "
        f"Steps have: {', '.join(others) or 'nothing'}"
    )
