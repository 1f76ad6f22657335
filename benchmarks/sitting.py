"""Run the cases of this folder, print the results, and write them to a file.

    python -m benchmarks [--case NAME ...] [--only TEXT] [--quick] [--repeats 5] [--json FILE] [--list]

A case is a module `case_<name>.py` beside this one with `TITLE: str` and

    def duels(folder: Path, quick: bool) -> list[Duel]

`folder` is a scratch folder for the whole benchmark run, `quick` requests less work. Listing duels (`Duel`)
must be cheap, so anything that has to be made first (a model, a tokenizer) is a `prepare` script. A case that lacks a
requirement raises `Unavailable`. Programs are scripts of this folder; `figures.usage()` measures their resources.

A failing program is reported and the others continue; the exit code is then 1. A missed goal is reported like any
other figure and does not affect the exit code.
"""

from __future__ import annotations

import argparse
import importlib
import json
import platform
import subprocess
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import Any

from rich.console import Console

from benchmarks.places import HERE, Unavailable
from benchmarks.tables import case_table
from rlcore_tools.bench.duel import Duel, Figures, RunFailed, measure, run_python

PREFIX = "case_"


def case_names() -> list[str]:
    """List the cases in this folder."""
    return sorted(path.stem.removeprefix(PREFIX) for path in HERE.glob(f"{PREFIX}*.py"))


def load_case(name: str) -> ModuleType:
    """Import the module of the case `name`."""
    return importlib.import_module(f"{__package__}.{PREFIX}{name}")


def surroundings() -> Figures:
    """Return the date, the machine and the versions of the measurement."""
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": _commit(),
        "machine": platform.machine(),
        "cpu": _cpu_name(),
        "python": platform.python_version(),
        **{name: _version(name) for name in ("rlcore", "torch", "transformers")},
        "threads": 1,
    }


def _version(dist: str) -> str | None:
    try:
        return version(dist)
    except PackageNotFoundError:
        return None


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")


def _commit() -> str | None:
    """Return the commit, followed by `+` if the working tree differs from it; None without git."""
    try:
        told = subprocess.run(
            ["git", "describe", "--always", "--abbrev=12", "--dirty=+", "--exclude=*"],
            cwd=HERE, capture_output=True, text=True, check=True,
        )  # fmt: skip
    except (OSError, subprocess.CalledProcessError):
        return None
    return told.stdout.strip()


class Sitting:
    """Run of several duels; each result is written to the file as soon as it is measured.

    Args:
        console: console for progress and tables.
        path: the JSON file.
        repeats: pairs of runs per duel.
        quick: request less work from the cases.
    """

    def __init__(self, console: Console, path: Path, *, repeats: int, quick: bool) -> None:
        self.console, self.path, self.repeats, self.quick = console, path, repeats, quick
        self.results: Figures = {**surroundings(), "quick": quick, "repeats": repeats, "cases": {}}
        self.failures = 0
        self._prepared: set[tuple[str, ...]] = set()

    def run(self, name: str, folder: Path, *, only: str = "") -> None:
        """Run the duels of a case whose names contain `only`, print their table, and write the results."""
        case = load_case(name)
        result: Figures = {"title": case.TITLE, "duels": {}}
        self.results["cases"][name] = result
        try:
            chosen = [duel for duel in case.duels(folder, self.quick) if only in duel.name]
        except Unavailable as lacking:
            result["unavailable"] = str(lacking)
            self.console.print(f"[bold]{name}[/]: not run: {lacking}")
            chosen = []
        for duel in chosen:
            result["duels"][duel.name] = self._measure(duel, folder)
            self.write()
        if chosen:
            self.console.print(case_table(name, result))
        if chosen or not only:
            self.write()

    def _measure(self, duel: Duel, folder: Path) -> Figures:
        try:
            for argv in map(tuple, duel.prepare):
                if argv not in self._prepared:
                    self._tell(f"making ready: {argv[0]}")
                    run_python(*argv, scripts=HERE, environment=duel.environment, cwd=folder)
                    self._prepared.add(argv)
            return measure(duel, folder, scripts=HERE, repeats=self.repeats, told=self._tell)
        except RunFailed as failure:
            self.failures += 1
            self.console.print(f"{duel.name}: {failure}", style="red", markup=False)
            return {"failure": str(failure)}

    def _tell(self, what: str) -> None:
        self.console.print(f"  {what}", style="dim", markup=False)

    def write(self) -> None:
        """Write all results so far."""
        self.path.write_text(json.dumps(self.results, indent=1) + "\n", encoding="utf-8")


def main(arguments: Sequence[str] | None = None) -> int:
    """Parse the command line, run, and return the exit code: 1 if a program failed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", action="append", choices=case_names(), help="a case to run; all when left out")
    parser.add_argument("--only", default="", metavar="TEXT", help="only the duels whose names hold this")
    parser.add_argument("--quick", action="store_true", help="less work, for a first look")
    parser.add_argument("--repeats", type=_count, default=5, help="pairs of runs a duel")
    parser.add_argument("--json", type=Path, default=Path("benchmarks.json"), help="where the figures go")
    parser.add_argument("--list", action="store_true", help="list cases and duels, and run nothing")
    options = parser.parse_args(arguments)
    if not options.json.resolve().parent.is_dir():
        parser.error(f"argument --json: '{options.json}': there is no such folder")
    console = Console(width=180, highlight=False, soft_wrap=False)
    names = options.case or case_names()
    with TemporaryDirectory() as scratch:
        if options.list:
            list_duels(console, names, Path(scratch), quick=options.quick)
            return 0
        sitting = Sitting(console, options.json.resolve(), repeats=options.repeats, quick=options.quick)
        for name in names:
            folder = Path(scratch) / name
            folder.mkdir()
            sitting.run(name, folder, only=options.only)
    if options.only and not any(case["duels"] for case in sitting.results["cases"].values()):
        parser.error(f"argument --only: no duel that can run here has {options.only!r} in its name; --list names them")
    console.print(f"figures: {options.json}")
    return int(sitting.failures > 0)


def _count(text: str) -> int:
    if not (text.isdecimal() and int(text)):
        raise argparse.ArgumentTypeError(f"{text!r}: must be a whole number, at least 1")
    return int(text)


def list_duels(console: Console, names: Sequence[str], folder: Path, *, quick: bool) -> None:
    """Print every case's title and the names of its duels."""
    for name in names:
        case: Any = load_case(name)
        console.print(f"[bold]{name}[/]: {case.TITLE}")
        try:
            for duel in case.duels(folder, quick):
                console.print(f"  {duel.name}", markup=False)
        except Unavailable as lacking:
            console.print(f"  not here: {lacking}", markup=False)
