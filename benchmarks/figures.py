"""Figures that the benchmark programs report, measured the same way in each."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from rlcore_tools.bench.timed_case import peak_rss_mb

TICKS, PAGE = os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE")


@dataclass
class Clock:
    """Record the wall and CPU time at the end of each iteration, and the total seconds of its phases."""

    phases: dict[str, float] = field(default_factory=dict)
    wall: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    _last: float = 0.0

    def end_phase(self, name: str) -> None:
        """Add the time since the last call of any method to phase `name`."""
        now = time.perf_counter()
        self.phases[name] = self.phases.get(name, 0.0) + now - self._last
        self._last = now

    def mark(self) -> None:
        """Record the time: once before the first iteration and once after each."""
        self._last = time.perf_counter()
        self.wall.append(self._last)
        self.cpu.append(time.process_time())


def after_imports() -> dict[str, float]:
    """Return the resident memory of this process, to be called when everything is imported and nothing is loaded."""
    return {
        "imports_rss_mb": round(int(Path("/proc/self/statm").read_text(encoding="utf-8").split()[1]) * PAGE / 2**20)
    }


def above_imports(figures: dict[str, Any], imports: dict[str, float]) -> dict[str, Any]:
    """Return the figures of a run with those of `after_imports`, and by how much the peak exceeds them."""
    return {**figures, **imports, "peak_above_imports_mb": figures["peak_rss_mb"] - imports["imports_rss_mb"]}


def usage() -> dict[str, float]:
    """Return the resources used by this process: CPU seconds, seconds since its start, peak resident memory."""
    # CPU time includes the start of Python, so wall time must too: /proc contains the start time of the process
    begun = float(Path("/proc/self/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[19]) / TICKS
    return {
        "cpu_s": round(time.process_time(), 4),
        "wall_s": round(time.clock_gettime(time.CLOCK_BOOTTIME) - begun, 4),
        "peak_rss_mb": round(peak_rss_mb()),
    }


def first_reached(scores: list[float], cpu: list[float], level: float) -> dict[str, float] | None:
    """Return the iteration and CPU second at which the mean score of 3 iterations first reached `level`.

    Args:
        scores: one score per iteration.
        cpu: CPU seconds at the start and after each iteration, one more than `scores`.
        level: the mean score that counts.
    """
    for i in range(3, len(scores) + 1):
        if sum(scores[i - 3 : i]) / 3 >= level:
            return {"iteration": i, "cpu_s": round(cpu[i] - cpu[0], 2)}
    return None


def report(scores: list[float], clock: Clock) -> dict[str, Any]:
    """Summarise a run: wall seconds (median and tenth percentile), mean CPU seconds, phases, and when .95 was reached.

    On a busy machine, the fastest iterations are the most reproducible.
    """
    took = sorted(after - before for before, after in pairwise(clock.wall))
    reached: Any = first_reached(scores, clock.cpu, 0.95) or {"iteration": None, "cpu_s": None}
    return {
        "s_per_iteration": round(median(took), 5),
        "s_per_quick_iteration": round(took[len(took) // 10], 5),
        "cpu_s_per_iteration": round((clock.cpu[-1] - clock.cpu[0]) / len(scores), 5),
        "phase_s": {name: round(value / len(scores), 5) for name, value in clock.phases.items()},
        "iterations_to_95": reached["iteration"],
        "cpu_s_to_95": reached["cpu_s"],
        "scores": [round(score, 3) for score in scores],
        **usage(),
    }
