"""Measure PPO through rlcore against the same work written by hand, alternating the two in one sitting.

    python ppo_randomwalks.py [--repeats 3] [--learn] [--json FILE]

Every run is a process of its own with one thread. Printed are seconds per iteration of both (median over the repeats,
and their range), their ratio, the same for a model so small that only overhead is left, and, with --learn, how many
iterations and CPU seconds both take to a mean optimality of .95 on three seeds. Figures of different sittings are not
comparable: a shared machine changes speed within minutes, and while others compute on it only CPU seconds mean much.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from rich.console import Console
from rich.table import Table

HERE = Path(__file__).resolve().parent
PROGRAMS = {"hand": [str(HERE / "hand_ppo.py"), "ppo"], "rlcore": [str(HERE / "door_ppo.py")]}

Figures = dict[str, Any]


def run_python(*arguments: str) -> str:
    """Run a script in a process of its own with one thread, and return its last line."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    done = subprocess.run([sys.executable, *arguments], env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(arguments)} failed with exit code {done.returncode}:\n{done.stderr[-4000:]}")
    return done.stdout.strip().rpartition("\n")[2]


def alternate(base: str, *, repeats: int, iterations: int) -> dict[str, list[Figures]]:
    """Run each program in turn, `repeats` times over."""
    figures: dict[str, list[Figures]] = {name: [] for name in PROGRAMS}
    for _ in range(repeats):
        for name, command in PROGRAMS.items():
            figures[name].append(json.loads(run_python(*command, base, "--iterations", str(iterations))))
    return figures


def compare(figures: dict[str, list[Figures]]) -> Figures:
    """Give each program's median and range, and the ratio, taken repeat by repeat, of wall and of CPU seconds."""
    summary: Figures = {}
    for key in ("s_per_iteration", "cpu_s_per_iteration"):
        columns = {name: [run[key] for run in runs] for name, runs in figures.items()}
        ratios = [ours / hand for ours, hand in zip(columns["rlcore"], columns["hand"], strict=True)]
        for name, column in {**columns, "ratio": ratios}.items():
            numbers = {"median": median(column), "min": min(column), "max": max(column)}
            summary.setdefault(name, {})[key] = {label: round(number, 5) for label, number in numbers.items()}
    for name, runs in figures.items():
        summary[name]["phase_s"] = runs[-1]["phase_s"]
        summary[name]["peak_rss_mb"] = max(run["peak_rss_mb"] for run in runs)
    return summary


def speed_table(title: str, summary: Figures) -> Table:
    table = Table("", "wall s per iteration", "range", "CPU s per iteration", "peak MB", title=title)
    for name, row in summary.items():
        wall, cpu = row["s_per_iteration"], row["cpu_s_per_iteration"]
        span = f"{wall['min']:.4f} to {wall['max']:.4f}"
        table.add_row(name, f"{wall['median']:.4f}", span, f"{cpu['median']:.4f}", str(row.get("peak_rss_mb", "")))
    return table


def learn(base: str, *, seeds: list[int], iterations: int) -> dict[str, list[Figures]]:
    """Run each program with each seed, long enough to reach .95."""
    figures: dict[str, list[Figures]] = {name: [] for name in PROGRAMS}
    for seed in map(str, seeds):
        for name, command in PROGRAMS.items():
            run = json.loads(run_python(*command, base, "--iterations", str(iterations), "--seed", seed))
            figures[name].append({"seed": int(seed), **run})
    return figures


def learning_table(figures: dict[str, list[Figures]], iterations: int) -> Table:
    table = Table("", "seed", "iterations to .95", "CPU s to .95", title=f"learning (of {iterations} iterations)")
    for name, runs in figures.items():
        for run in runs:
            reached = run["reached_95"] or {"iteration": "never", "cpu_s": "-"}
            table.add_row(name, str(run["seed"]), str(reached["iteration"]), str(reached["cpu_s"]))
    return table


def main() -> None:
    """Read the command line, make the starting models, measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--iterations", type=int, default=12)
    parser.add_argument("--tiny-iterations", type=int, default=60)
    parser.add_argument("--learn", action="store_true", help="also measure iterations and CPU seconds to .95")
    parser.add_argument("--learn-iterations", type=int, default=40)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--base", help="starting model made by `hand_ppo.py base`; made first when left out")
    parser.add_argument("--json", type=Path, default=Path("ppo_randomwalks.json"), help="where the figures go")
    options = parser.parse_args()
    console = Console()
    with TemporaryDirectory() as folder:
        base, tiny = options.base or f"{folder}/base", f"{folder}/tiny"
        if not options.base:
            run_python(str(HERE / "hand_ppo.py"), "base", base)
        run_python(str(HERE / "hand_ppo.py"), "base", tiny, "--tiny")
        results: Figures = {"python": platform.python_version(), "machine": platform.machine(), "threads": 1}
        for name, start, iterations in (("base", base, options.iterations), ("tiny", tiny, options.tiny_iterations)):
            runs = alternate(start, repeats=options.repeats, iterations=iterations)
            results[name] = {"iterations": iterations, "summary": compare(runs), "runs": runs}
            title = {"base": "6 layers, 144 wide", "tiny": "1 layer, 24 wide: overhead alone"}[name]
            console.print(speed_table(title, results[name]["summary"]))
        if options.learn:
            results["learn"] = learn(base, seeds=options.seeds, iterations=options.learn_iterations)
            console.print(learning_table(results["learn"], options.learn_iterations))
    options.json.write_text(json.dumps(results, indent=1) + "\n")
    console.print(f"figures: {options.json}")


if __name__ == "__main__":
    main()
