"""The figures that benchmark programs report, so that programs are compared by one measure."""

from __future__ import annotations

import os
import resource
import time
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

TICKS = os.sysconf("SC_CLK_TCK")


@dataclass
class Clock:
    """Note the end of each iteration in wall and in CPU seconds, and add up the seconds of its phases."""

    phases: dict[str, float] = field(default_factory=dict)
    wall: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    _last: float = 0.0

    def end_phase(self, name: str) -> None:
        """Put the time since the last call of any kind down to `name`."""
        now = time.perf_counter()
        self.phases[name] = self.phases.get(name, 0.0) + now - self._last
        self._last = now

    def mark(self) -> None:
        """Note the time: once before the first iteration and once after each."""
        self._last = time.perf_counter()
        self.wall.append(self._last)
        self.cpu.append(time.process_time())


def usage() -> dict[str, float]:
    """Return what this process has taken so far: CPU seconds, seconds since it began, the most memory it held."""
    # Python's own start is in the first, so it belongs into the second: /proc tells when the process began.
    begun = float(Path("/proc/self/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[19]) / TICKS
    return {
        "cpu_s": round(time.process_time(), 4),
        "wall_s": round(time.clock_gettime(time.CLOCK_BOOTTIME) - begun, 4),
        "peak_rss_mb": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024),
    }


def first_reached(scores: list[float], cpu: list[float], level: float) -> dict[str, float] | None:
    """Tell at which iteration and CPU second the mean score of 3 iterations first reached `level`.

    Args:
        scores: of each iteration.
        cpu: one more than scores: CPU seconds at the start, then after each iteration.
    """
    for i in range(3, len(scores) + 1):
        if sum(scores[i - 3 : i]) / 3 >= level:
            return {"iteration": i, "cpu_s": round(cpu[i] - cpu[0], 2)}
    return None


def report(scores: list[float], clock: Clock) -> dict[str, Any]:
    """Sum up a run: wall seconds (the median and the tenth percentile), mean CPU seconds, phases, when .95 was reached.

    While others compute, it is the quick iterations that are alike from run to run.
    """
    took = sorted(after - before for before, after in pairwise(clock.wall))
    reached = first_reached(scores, clock.cpu, 0.95) or {"iteration": None, "cpu_s": None}
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
