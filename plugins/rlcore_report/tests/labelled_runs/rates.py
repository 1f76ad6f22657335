"""Compute the error rates of the verdicts on the labelled runs, and write them to docs/runs.md.

    python rates.py [--show]

`--show` prints each run with the verdicts that it has instead.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import attrs
from fabricated import fabricated
from labelled import LabelledRun, all_runs, good

from rlcore_report.metric_groups import Series
from rlcore_report.verdicts import Verdict, verdicts

PAGE = Path(__file__).resolve().parents[4] / "docs" / "runs.md"
FRESH = 9
"""First seed of the runs that were judged when the rules were fixed."""
EARLY = (5, 10, 20)
"""Steps after which good runs are judged while they go on."""
BEGIN, END = "<!-- verdict rates: make verdicts -->\n", "<!-- end of verdict rates -->\n"


@attrs.frozen
class Rates:
    """Counts of a set of runs.

    Attributes:
        name: the set.
        num_good: good runs.
        false_alarms: good runs with a verdict that is not good.
        num_broken: broken runs.
        missed: broken runs without such a verdict.
        right_cause: broken runs whose first verdict names the cause.
    """

    name: str
    num_good: int
    false_alarms: int
    num_broken: int
    missed: int
    right_cause: int


def problems(run: LabelledRun) -> list[Verdict]:
    """Return the verdicts of a run that are not good, the first of which names the likely cause."""
    return [verdict for verdict in verdicts(run.metrics, (), run.config) if verdict.level != "good"]


def rates(name: str, runs: Sequence[LabelledRun]) -> Rates:
    """Count the errors on some runs."""
    found = [(run, problems(run)) for run in runs]
    well, broken = ([pair for pair in found if bool(pair[0].cause) is is_broken] for is_broken in (False, True))
    return Rates(
        name, len(well), sum(bool(each) for _, each in well), len(broken), sum(not each for _, each in broken),
        sum(bool(each) and each[0].cause == run.cause for run, each in broken),
    )  # fmt: skip


def all_rates() -> list[Rates]:
    """Return the counts of each set: what the rules were made on, what measures them, and synthetic series."""
    runs = all_runs()
    synthetic = [run for run in runs if run.made == "synthetic"]
    trained = [run for run in runs if run.made == "trained"]
    fresh = [run for run in trained if run.seed >= FRESH]
    return [
        rates("trained; the rules were made on these", [run for run in trained if run.seed < FRESH]),
        rates("trained for measuring: other models, rows and seeds", fresh),
        rates("series drawn from formulas; the rules were made on half of them", synthetic),
        rates("series drawn by hand, 12 bad and 8 good of each of four kinds of trainers", fabricated()),
    ]


def until(run: LabelledRun, step: int) -> LabelledRun:
    """Return a run as it is after a step, while it goes on."""
    metrics = {
        name: Series(series.steps[series.steps <= step], series.values[series.steps <= step])
        for name, series in run.metrics.items()
        if series.steps[0] <= step
    }
    return attrs.evolve(run, metrics=metrics)


def early_rates() -> list[Rates]:
    """Return the false alarms about the good trained runs after some of their steps, as a dashboard judges them."""
    trained = [run for run in good(all_runs()) if run.made == "trained"]
    return [
        rates(f"good trained runs of both rows above, after step {step}", [
            until(run, step) for run in trained if max(series.steps[-1] for series in run.metrics.values()) > step
        ])
        for step in EARLY
    ]  # fmt: skip


def table() -> str:
    """Return the rates as a table in Markdown."""
    lines = ["| runs | good | false alarms | broken | missed | right cause first |", "|---|---|---|---|---|---|"]
    lines += [f"| {' | '.join(map(str, attrs.astuple(each)))} |" for each in all_rates()]
    lines += [f"| {each.name} | {each.num_good} | {each.false_alarms} | | | |" for each in early_rates()]
    return "\n".join(lines) + "\n"


def in_page(page: str) -> str:
    """Return the table that a page contains."""
    return page.partition(BEGIN)[2].partition(END)[0].strip() + "\n"


def main() -> None:
    """Write the table, or show the runs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--show", action="store_true", help="print every run with its verdicts")
    parser.add_argument("--seeds", type=int, nargs="*", help="with --show: only runs of these seeds")
    given = parser.parse_args()
    if given.show:
        for run in all_runs():
            if given.seeds is None or run.seed in given.seeds:
                found = problems(run)
                right = bool(found) and found[0].cause == run.cause if run.cause else not found
                print(f"{'' if right else 'WRONG '}{run.name}: {run.cause or 'good'}")
                for each in found:
                    print(f"    {each.level}: {each.name} [{each.cause}] step {each.step}: {each.evidence}")
                    print(f"        {each.option} = {each.value}")
        return
    page = PAGE.read_text(encoding="utf-8")
    before, _, rest = page.partition(BEGIN)
    PAGE.write_text(f"{before}{BEGIN}\n{table()}\n{END}{rest.partition(END)[2]}", encoding="utf-8")
    print(table(), end="")


if __name__ == "__main__":
    main()
