"""Measure the cost of plugins: the command line among many dists, a hook call, and a PPO iteration with observers.

    python -m benchmarks.plugin_machinery [--repeats 9] [--json FILE]

1. `rlcore list-plugins` with 100 generated dists on the path, 10 of them plugins, each time in a fresh process.
2. One call of an observer hook that five plugins implement, through the run's error isolation and through pluggy alone.
3. The share of a PPO iteration (rlcore-ppo on the random walks) spent in five observers of every hook: all time inside
   `rlcore.plugins.observers.Observers`, measured by a timer around each of its methods.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import pluggy
from rich.console import Console
from rich.table import Table

from benchmarks.places import HERE
from rlcore import hookspecs
from rlcore.plugins.observers import Observers
from rlcore_tools.bench.duel import run_python

NUM_DISTS, NUM_PLUGINS, IMPLEMENTERS = 100, 10, 5
PLUGIN = """
from rlcore import hookimpl

@hookimpl
def register_trainers(register):
    register("{name}", "{name}.trainer:Trainer")
"""
EVENTS = ("on_run_start", "on_rollout", "on_step", "on_evaluate", "on_checkpoint", "on_run_end")


def fill(site: Path) -> None:
    """Write the metadata of NUM_DISTS dists; the first NUM_PLUGINS of them have an rlcore entry point."""
    for i in range(NUM_DISTS):
        name = f"made_up_{i:03d}"
        info = site / f"{name}-1.0.dist-info"
        info.mkdir(parents=True)
        lines = ["Metadata-Version: 2.1", f"Name: {name}", "Version: 1.0", "Requires-Dist: rlcore>=0.1,<0.2"]
        (info / "METADATA").write_text("\n".join([*lines, "", "A package. " * 200]))
        group = f"[rlcore]\nmain = {name}\n" if i < NUM_PLUGINS else f"[console_scripts]\n{name} = {name}:main\n"
        (info / "entry_points.txt").write_text(group)
        (site / f"{name}.py").write_text(PLUGIN.format(name=name))


def time_listing(site: Path | None) -> float:
    """Return the wall seconds of one `rlcore list-plugins` in a fresh process with `site` on its path."""
    environment = {**os.environ, "PYTHONPATH": str(site) if site else ""}
    begun = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-P", "-m", "rlcore", "list-plugins"],
        env=environment, capture_output=True, text=True, check=True,
    )  # fmt: skip
    spent = time.perf_counter() - begun
    assert (site is not None) == ("made-up-009" in done.stdout)
    return spent


def observing() -> pluggy.PluginManager:
    """Return hooks with IMPLEMENTERS observer plugins, each of which does almost nothing."""
    hooks = pluggy.PluginManager(hookspecs.PROJECT)
    hooks.add_hookspecs(hookspecs)
    for i in range(IMPLEMENTERS):
        hooks.register(Listener(), name=f"listener-{i}")
    return hooks


class Listener:
    """Minimal observer that counts its calls."""

    def __init__(self) -> None:
        self.heard = 0

    @hookspecs.hookimpl
    def on_run_start(self, run: Any) -> None:
        """Count the call."""
        self.heard += 1

    @hookspecs.hookimpl
    def on_rollout(self, run: Any, batch: Any) -> None:
        """Count the call."""
        self.heard += 1

    @hookspecs.hookimpl
    def on_step(self, run: Any, metrics: Any) -> None:
        """Count the call."""
        self.heard += 1


def time_call(call: Callable[[], Any], *, number: int = 5000) -> float:
    """Return the seconds of one call, the best of five runs of `number` calls."""
    goes = []
    for _ in range(5):
        begun = time.perf_counter()
        for _ in range(number):
            call()
        goes.append((time.perf_counter() - begun) / number)
    return min(goes)


def time_hook_calls() -> dict[str, float]:
    """Return the microseconds of a hook call with IMPLEMENTERS implementers."""
    hooks = observing()
    observers, metrics = Observers(hooks), {"loss": 1.0}
    run: Any = None
    fenced = time_call(lambda: observers.on_step(run, metrics))
    plain = time_call(lambda: hooks.hook.on_step(run=None, metrics=metrics))
    silent = time_call(lambda: observers.on_evaluate(run, metrics))
    return {"fenced": 1e6 * fenced, "pluggy alone": 1e6 * plain, "fenced, nobody listens": 1e6 * silent}


class HookTimer:
    """Timer of all methods of `Observers`."""

    def __init__(self) -> None:
        self.spent = 0.0

    def watch(self) -> None:
        """Wrap every method with the timer, for the lifetime of this process."""
        for event in EVENTS:
            setattr(Observers, event, self._timed(getattr(Observers, event)))

    def _timed(self, method: Callable[..., None]) -> Callable[..., None]:
        def timed(*arguments: Any) -> None:
            begun = time.perf_counter()
            method(*arguments)
            self.spent += time.perf_counter() - begun

        return timed


def measure_iteration(base: str, iterations: int) -> dict[str, float]:
    """Train by PPO with IMPLEMENTERS observers; return seconds per iteration, seconds in observers, and their share."""
    from benchmarks.tasks import load_task
    from benchmarks.train_ppo import train
    from rlcore.plugins.registry import registries

    for i in range(IMPLEMENTERS):
        registries().discovery.hooks.register(Listener(), name=f"listener-{i}")
    clock = HookTimer()
    clock.watch()
    seconds = train(base, load_task("walks"), iterations=iterations, seed=0)["s_per_iteration"]
    observers_s = clock.spent / (iterations + 1)
    return {"s_per_iteration": seconds, "observers_s": observers_s, "share": observers_s / seconds}


def run_iteration(*, tiny: bool, iterations: int) -> dict[str, float]:
    """Call `measure_iteration` in its own process, on the benchmark's model or on a tiny model."""
    with TemporaryDirectory() as folder:
        run_python("hand_ppo.py", "base", f"{folder}/base", *(["--tiny"] if tiny else []), scripts=HERE)
        measured: dict[str, float] = json.loads(
            run_python("plugin_machinery.py", "--iteration", f"{folder}/base", str(iterations), scripts=HERE)
        )
    return measured


def main() -> None:
    """Parse the command line, measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--iteration", nargs=2, metavar=("FOLDER", "N"), help="only train, and print one line of JSON")
    parser.add_argument("--json", type=Path, default=Path("plugin_machinery.json"), help="where the figures go")
    options = parser.parse_args()
    if options.iteration:
        print(json.dumps(measure_iteration(options.iteration[0], int(options.iteration[1]))))
        return
    table = Table("what", "measured", title="what plugins cost")
    with TemporaryDirectory() as folder:
        fill(Path(folder))
        pairs = [(time_listing(None), time_listing(Path(folder))) for _ in range(options.repeats)]
    listing = {"without": median(one for one, _ in pairs), "with": median(other for _, other in pairs)}
    results: dict[str, Any] = {"list_plugins_s": listing, "hook_call_us": time_hook_calls()}
    table.add_row("list-plugins, nothing made up", f"{listing['without']:.3f} s")
    table.add_row(f"list-plugins, {NUM_DISTS} more dists, {NUM_PLUGINS} of them plugins", f"{listing['with']:.3f} s")
    for name, microseconds in results["hook_call_us"].items():
        table.add_row(f"a hook call with {IMPLEMENTERS} implementers, {name}", f"{microseconds:.1f} us")
    for name, tiny, iterations in (("6 layers, 144 wide", False, 8), ("1 layer, 24 wide", True, 60)):
        row = results[f"ppo, {name}"] = run_iteration(tiny=tiny, iterations=iterations)
        spent = f"{1e6 * row['observers_s']:.0f} us of {row['s_per_iteration']:.4f} s: {row['share']:.3%}"
        table.add_row(f"{IMPLEMENTERS} observers in a PPO iteration, {name}", spent)
    Console(width=120).print(table)
    options.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
