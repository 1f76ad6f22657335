"""Two versions of a repository, built and run alternately, and what they differ in.

Also in this file: the page of a comparison: what got better or worse, and the learning curves of both versions.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import attrs
from rich.console import Console
from rich.table import Table
from rich.text import Text

from rlcore._version import __version__
from rlcore.safe_text import visible
from rlcore_report.html_page import fill_page
from rlcore_report.metric_groups import read_series
from rlcore_report.page_data import curve_groups, rounded
from rlcore_report.run_record import RunRecord, read_run, write_page
from rlcore_report.variants import Variant
from rlcore_tools.bench.duel import Duel, Figures, RunFailed, measure
from rlcore_tools.bench.measure import (
    FEWEST_PAIRS,
    LEVEL,
    REPEATED_LEVEL,
    RESOURCES,
    STEPS,
    Measure,
    compare_learning,
    compare_resource,
    learning_figures,
)
from rlcore_tools.bench.source_tree import Repository, Version, build_wheels, find_dists, make_environment

PROGRAM = "timed_case.py"
MOST_SEEDS = 100
"""Pairs after which `until` gives up."""
SIDES = ("theirs", "ours")
"""The older version and the newer one, as sides of a duel."""
COLOURS = {"better": "green", "same": "dim", "worse": "red"}


class Contest:
    """The comparison of two versions.

    Args:
        repository: where they come from.
        versions: the older one, then the newer one.
        folder: a folder that the caller removes.
        console: where progress and results are printed.
    """

    def __init__(
        self, repository: Repository, versions: tuple[Version, Version], folder: Path, *, console: Console
    ) -> None:
        self.repository, self.versions, self.folder, self.console = repository, versions, folder, console
        self.pythons: dict[str, str] = {}
        self.cases: list[CaseRuns] = []
        self.measures: list[Measure] = []
        self.failures: dict[str, str] = {}

    def build(self) -> None:
        """Write both trees, build their dists, and install them in an environment each.

        Raises:
            TreeNotBuilt: a dist of one of them does not build.
        """
        dists = {}
        for side, version in zip(SIDES, self.versions, strict=True):
            self.repository.write(version, self._tree(side))
            dists[side] = find_dists(self._tree(side), label=version.label)
        without = {name for each in dists.values() for name in each}
        for side, version in zip(SIDES, self.versions, strict=True):
            self._print(f"{version.label}: {version.about}")
            wheels = build_wheels(dists[side].items(), self.folder / f"wheels-{side}", label=version.label)
            self.pythons[side] = make_environment(self.folder / f"env-{side}", wheels, without=without)

    def run(
        self, name: str, file: Path, *, seeds: int, quick: bool, data: Path | None, until: float | None = None
    ) -> None:
        """Run a case with each seed in both versions, and compare; a failure is kept, and printed.

        Args:
            name: the name of the case.
            file: its file.
            seeds: pairs of runs; with `until`, at least so many, and at least `FEWEST_PAIRS`.
            quick: whether the case is to do less work.
            data: a folder of texts, if there is one.
            until: the relative change of the CPU time that the pairs are to show; more run until they can.

        Raises:
            KeyboardInterrupt: Ctrl-C; the pairs that are complete are compared first.
        """
        folders = {side: self.folder / "runs" / name / side for side in SIDES}
        options = [*(["--quick"] if quick else []), *(["--data", str(data.resolve())] if data else [])]
        argv = {
            side: [PROGRAM, str(file), str(folders[side] / "{repeat}"), "--seed", "{repeat}", *options]
            for side in SIDES
        }
        duel = Duel(
            name, argv["ours"], argv["theirs"], figure="cpu_s",
            ours_python=self.pythons["ours"], theirs_python=self.pythons["theirs"],
            environment={
                "PYTHONSAFEPATH": "1",  # this package's folder is no place for imports
                "PYTHONPATH": str(self._tree("ours") / "docs" / "examples"),  # one definition of the walks for both
                "PYTHONNOUSERSITE": "1",
            },
        )  # fmt: skip
        pairs: list[dict[str, Figures]] = []
        level = LEVEL if until is None else REPEATED_LEVEL

        def is_enough() -> bool:
            return until is not None and len(pairs) >= seeds and are_enough(pairs, until)

        repeats = seeds if until is None else max(seeds, MOST_SEEDS)
        try:
            measure(
                duel, self.folder, scripts=Path(__file__).parent, repeats=repeats, told=self._tell, pairs=pairs,
                is_enough=is_enough,
            )  # fmt: skip
            self._compare(name, file, pairs, folders, level)
        except RunFailed as failure:
            self.failures[name] = self._with_labels(str(failure))
            self._print(f"{name}: {self.failures[name]}", style="red")
        except KeyboardInterrupt:
            if len(pairs) > 1:
                self._print(f"{name}: interrupted after {len(pairs)} pairs, which are compared", style="red")
                self._compare(name, file, pairs, folders, level)
            else:
                self._print(f"{name}: interrupted before two pairs were complete; none is compared", style="red")
            raise
        if until is not None and name not in self.failures and not are_enough(pairs, until):
            self._print(f"{name}: {len(pairs)} pairs cannot show a change of {until:.1%}: the machine is too noisy")

    def _compare(
        self, name: str, file: Path, pairs: Sequence[dict[str, Figures]], folders: dict[str, Path], level: float
    ) -> None:
        runs = {side: [folders[side] / str(seed) / "run" for seed in range(len(pairs))] for side in SIDES}
        self.measures += compare(name, pairs, *(runs[side] for side in SIDES), level=level)
        self.cases.append(CaseRuns(name, title_of(file), runs["theirs"], runs["ours"]))

    def report(self, file: Path) -> None:
        """Print the table, and write the page."""
        labels = (version.label for version in self.versions)
        table = Table("case", "measure", *labels, "change", "", "could be seen", box=None)
        for each in self.measures:
            numbers = [f"{number:.4g}" for number in (each.before, each.after)]
            table.add_row(
                *map(Text, (each.case, each.name, *numbers, each.shown_change)), Text(each.word, COLOURS[each.word]),
                Text(each.shown_visible, "dim"),
            )  # fmt: skip
        if self.measures:
            self.console.print(table)
            self._print(METHOD, style="dim")
        write_page(file, bench_page(self.versions, self.cases, self.measures, self.failures))
        self._print(f"wrote {file}")

    def _tree(self, side: str) -> Path:
        return self.folder / f"tree-{side}"

    def _tell(self, what: str) -> None:
        duel, _, rest = what.partition(": ")
        self._print(f"  {duel}: {self._with_labels(rest)}", style="dim")

    def _with_labels(self, text: str) -> str:
        """Replace the side in front of a text by the label of its version."""
        side, comma, rest = text.partition(",")
        labels = {side: version.label for side, version in zip(SIDES, self.versions, strict=True)}
        return f"{labels.get(side, side)}{', seed' if side in labels else comma}{rest}"

    def _print(self, text: str, style: str = "") -> None:
        self.console.print(Text(visible(text), style), soft_wrap=True)


def compare(
    case: str,
    pairs: Sequence[dict[str, Figures]],
    before: Sequence[Path],
    after: Sequence[Path],
    *,
    level: float = LEVEL,
) -> Iterator[Measure]:
    """Yield the measures of a case.

    Args:
        case: the name of the case.
        pairs: the figures that `timed_case` printed, by side, for each seed.
        before: the folders of the older version's runs.
        after: those of the newer one's.
        level: that of the intervals.

    Raises:
        RunFailed: a run has no values of its metric.
    """
    metric, better = pairs[0]["ours"]["metric"], pairs[0]["ours"]["better"]
    found = []
    for folders in (before, after):
        series = [read_series(folder / "metrics.jsonl").get(metric) for folder in folders]
        if lacking := [str(folder) for folder, each in zip(folders, series, strict=True) if each is None]:
            raise RunFailed(f"{lacking[0]}: its metrics.jsonl has no {metric}")
        found.append([learning_figures(metric, each) for each in series if each is not None])
    for name in pairs[0]["ours"].get("judged", {}):
        columns = ([float(pair[side]["judged"][name]) for pair in pairs] for side in SIDES)
        yield compare_learning(case, name, *columns, better=better, level=level)
    for name in found[0][0]:
        columns = ([run[name] for run in runs] for runs in found)
        yield compare_learning(case, name, *columns, better=better, level=level)
    for name, title in RESOURCES.items():
        if has_figure(pairs, name):
            columns = ([float(pair[side][name]) for pair in pairs] for side in SIDES)
            yield compare_resource(case, title, *columns, level=level)


def has_figure(pairs: Sequence[dict[str, Figures]], name: str) -> bool:
    """Return whether all runs have a figure; one of a few lines of metrics has no CPU time of steps."""
    return all(pair[side].get(name) for pair in pairs for side in SIDES)


def are_enough(pairs: Sequence[dict[str, Figures]], change: float) -> bool:
    """Return whether the pairs are so many, and vary so little, that they show a relative change of the CPU time."""
    if len(pairs) < FEWEST_PAIRS:
        return False
    name = STEPS if has_figure(pairs, STEPS) else "cpu_s"
    columns = ([float(pair[side][name]) for pair in pairs] for side in SIDES)
    return compare_resource("", name, *columns, level=REPEATED_LEVEL).visible <= change


def title_of(file: Path) -> str:
    """Return the first line of the docstring of a case."""
    return (ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or file.stem).partition("\n")[0]


METHOD = (
    "The versions ran alternately, each run in a process of its own with one thread. A pair is one seed; the "
    "interval is Student's 95 % interval of the mean paired difference, of times and memory on the logarithms of the "
    "ratios; with --until, the 97.5 % interval, as pairs are added "
    "until they seem enough. A difference counts if its interval excludes 0 and it is at least 1 %."
)


@attrs.frozen
class CaseRuns:
    """The runs of one case.

    Attributes:
        name: the name of the case.
        about: what it does.
        before, after: the folders of the runs of both versions, by seed.
    """

    name: str
    about: str
    before: Sequence[Path]
    after: Sequence[Path]


def bench_page(
    versions: Sequence[Version], cases: Sequence[CaseRuns], measures: Sequence[Measure], failures: Mapping[str, str]
) -> str:
    """Return the page.

    Args:
        versions: the older version, then the newer one.
        cases: the cases that ran.
        measures: what was compared.
        failures: errors of cases that did not run.
    """
    title = " against ".join(visible(version.label) for version in reversed(versions))
    data = {
        "title": title,
        "version": __version__,
        "written": datetime.now().astimezone().isoformat(sep=" ", timespec="minutes"),
        "stamp": "",
        "runs": [],
        "variants": [{"label": visible(version.label), "runs": 1} for version in versions],
        "groups": [group for case in cases for group in _groups(case, versions)],
        **{name: [] for name in ("verdicts", "samples", "options", "ends", "differences")},
        "bench": {
            "versions": [visible(f"{version.label}: {version.about}") for version in versions],
            "method": METHOD,
            "measures": [_measure(measure) for measure in measures],
            "failures": [visible(f"{name}: {failure}") for name, failure in failures.items()],
        },
    }
    return fill_page(data, title=title)


def _groups(case: CaseRuns, versions: Sequence[Version]) -> list[dict[str, Any]]:
    kinds = [
        Variant(version.label, _read(folders))
        for version, folders in zip(versions, (case.before, case.after), strict=True)
    ]
    groups = curve_groups(kinds)
    for group in groups:
        group["title"] = f"{case.name}: {group['title']}"
    return groups


def _read(folders: Sequence[Path]) -> tuple[RunRecord, ...]:
    return tuple(read_run(folder, is_running=False) for folder in folders)


def _measure(measure: Measure) -> dict[str, object]:
    return {
        "case": visible(measure.case),
        "name": visible(measure.name),
        "before": rounded(measure.before),
        "after": rounded(measure.after),
        "change": measure.shown_change,
        "count": measure.count,
        "word": measure.word,
        "visible": measure.shown_visible,
    }
