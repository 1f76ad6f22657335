"""Run one case once, in the environment of a tree, and print what it took as one line of JSON.

    python timed_case.py FILE FOLDER --seed 0 [--quick] [--data FOLDER]

FILE is a Python file with `METRIC`, the metric by which the run is judged, `BETTER`, which is `more` or `less`, and

    def train(folder: Path, *, seed: int, quick: bool, data: Path | None) -> Mapping[str, float] | None

which trains with `rlcore.train(..., run={"root": str(folder), "name": "run"})`, and so leaves its metrics in
FOLDER/run/metrics.jsonl. It may return figures of the trained model by name, of which `BETTER` holds too. A figure that
the case computes by itself also judges a version that reports its own metric wrongly. This script imports nothing but
the standard library and FILE.

`step_cpu_s` is the CPU time between the first and the last line of the metrics: that of the steps after the first one,
without imports, loading and the last export. It is null for a run with fewer lines.
"""

from __future__ import annotations

import argparse
import json
import resource
import runpy
import sys
import threading
import time
from pathlib import Path

POLL_S = 0.002


def main() -> None:
    """Parse the command line, run, and print."""
    begun = time.perf_counter()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--quick", action="store_true", help="less work")
    parser.add_argument("--data", type=Path, help="folder of texts, if there is one")
    options = parser.parse_args()
    case = runpy.run_path(str(options.file))
    options.folder.mkdir(parents=True)
    steps = StepClock(options.folder / "run" / "metrics.jsonl")
    judged = case["train"](options.folder, seed=options.seed, quick=options.quick, data=options.data)
    step_cpu_s = steps.stop()
    used = resource.getrusage(resource.RUSAGE_SELF)
    figures = {
        "metric": case["METRIC"],
        "better": case["BETTER"],
        "judged": dict(judged or {}),
        "step_cpu_s": step_cpu_s,
        "cpu_s": used.ru_utime + used.ru_stime,
        "wall_s": time.perf_counter() - begun,
        "peak_rss_mb": peak_rss_mb(),
    }
    print(json.dumps(figures))  # noqa: T201  the line that a duel reads


class StepClock:
    """Reads the CPU time of this process whenever a file grows, from a thread.

    Args:
        file: the metrics of the run, which has a new line after each step.
    """

    def __init__(self, file: Path) -> None:
        self._file, self._size = file, 0
        self._readings: list[float] = []
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def stop(self) -> float | None:
        """Return the CPU seconds between the first and the last growth; None if there was only one."""
        self._over.set()
        self._thread.join()
        return self._readings[-1] - self._readings[0] if len(self._readings) > 1 else None

    def _watch(self) -> None:
        while not self._over.wait(POLL_S):
            try:
                size = self._file.stat().st_size
            except OSError:
                continue
            if size != self._size:
                self._size = size
                self._readings.append(time.process_time())


def peak_rss_mb() -> float:
    """Return the peak resident memory of this process."""
    status = Path("/proc/self/status")
    if status.exists():  # on Linux, getrusage counts the process that started this one, until exec
        (line,) = (line for line in status.read_text(encoding="utf-8").splitlines() if line.startswith("VmHWM:"))
        return int(line.split()[1]) / 2**10
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (2**20 if sys.platform == "darwin" else 2**10)


if __name__ == "__main__":
    main()
