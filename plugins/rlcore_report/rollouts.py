"""Runs on disk, and the rows of their `rollouts.jsonl` and `completions.jsonl`.

Also in this file: output of `rlcore rollouts`: tables on a terminal, one line per row in a pipe, or JSON; the
arguments of `rlcore rollouts`, and the function that runs it.
"""

from __future__ import annotations

import argparse
import heapq
import json
import math
import re
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from functools import partial
from pathlib import Path

import attrs
from rich.cells import cell_len
from rich.text import Text

from rlcore._version import __version__
from rlcore.checkpoints.run_folder import RunDir
from rlcore.config import load_yaml
from rlcore.errors import ConfigError, NoRollouts
from rlcore.loggers import display_row
from rlcore.loggers.console import make_console, make_list
from rlcore_report.console import make_table, room_for_texts, stacked
from rlcore_report.run_files import Row, last_change, read_rows, runs_in


@attrs.frozen
class Query:
    """A selection of rows; an empty query selects the rows of the last step that has any.

    Attributes:
        steps: first and last step.
        best: number of rows with the highest rewards, highest first.
        worst: number of rows with the lowest rewards, lowest first.
        text: substring of the prompt or the output, ignoring case.
    """

    steps: tuple[int, float] | None = None
    best: int = 0
    worst: int = 0
    text: str = ""

    @property
    def is_empty(self) -> bool:
        """Return whether the query has no condition."""
        return self == Query()


@attrs.frozen
class RunSummary:
    """One run in the list of runs: last step, numbers of rollouts and completions, time of the last change."""

    run: str
    steps: int
    rollouts: int
    completions: int
    changed: str


def parse_steps(text: str) -> tuple[int, float]:
    """Parse `7`, `3:9`, `3:` or `:9` into the first and the last step.

    Raises:
        ConfigError: the text has another form, or the range is reversed.
    """
    match = re.fullmatch(r"(\d*)(:?)(\d*)", text.strip(), re.ASCII)
    if match is None or not (match[1] or match[3]):
        raise ConfigError(f"steps {text!r}: must be a step or a range, such as 7, 3:9, 3: or :9")
    first = int(match[1] or 0)
    last = (int(match[3]) if match[3] else math.inf) if match[2] else first
    if last < first:
        raise ConfigError(f"steps {text!r}: the range is reversed; write {last}:{first}")
    return first, last


def list_runs(root: Path) -> list[RunSummary]:
    """Summarise the runs in `root`, most recently changed first.

    Raises:
        NoRollouts: `root` contains no run.
    """
    folders = runs_in(root)
    if not folders:
        raise NoRollouts(f"{root} contains no run; name the folder of a run: rlcore rollouts RUN")
    return [
        RunSummary(
            run=folder.name,
            steps=max((row["step"] for row in read_rows(RunDir(folder).metrics)), default=0),
            rollouts=_count_lines(RunDir(folder).rollouts),
            completions=_count_lines(RunDir(folder).completions),
            changed=datetime.fromtimestamp(last_change(folder)).astimezone().isoformat(sep=" ", timespec="minutes"),
        )
        for folder in folders
    ]


def select(run: Path, query: Query, *, completions: bool = False) -> dict[str, list[Row]]:
    """Return the rows of a run that match a query, as title -> rows.

    Args:
        run: the run's folder.
        query: conditions on the rows.
        completions: read completions of evaluations instead of rollouts.

    Raises:
        NoRollouts: the run has no rows, or none matches; the message states which steps have rows.
    """
    file = RunDir(run).completions if completions else RunDir(run).rollouts
    what = "completions" if completions else "rollouts"
    if query.is_empty:
        last = _last_step(file)
        groups = {f"{what} of step {last[0]['step']}": last} if last else {}
    elif query.best or query.worst:
        groups = _ranked(file, query, what)
    else:
        groups = {what: list(_matching(file, query))}
    groups = {title: rows for title, rows in groups.items() if rows}
    if not groups:
        raise NoRollouts(_explain(run, file, query, what))
    return groups


def _last_step(file: Path) -> list[Row]:
    rows: list[Row] = []
    for row in read_rows(file):
        if rows and row["step"] != rows[0]["step"]:
            rows = []
        rows.append(row)
    return rows


def _matching(file: Path, query: Query) -> Iterator[Row]:
    first, last = query.steps or (0, math.inf)
    text = query.text.casefold()
    for row in read_rows(file):
        texts = (str(row.get(key, "")).casefold() for key in ("prompt", "output"))
        if first <= row["step"] <= last and (not text or any(text in each for each in texts)):
            yield row


def _ranked(file: Path, query: Query, what: str) -> dict[str, list[Row]]:
    """Return the best and the worst rows; the file is read twice, so that only the results are kept in memory."""

    def numbered() -> Iterator[tuple[float, int, Row]]:
        for number, row in enumerate(_matching(file, query)):
            if isinstance(row.get("reward"), int | float):
                yield row["reward"], number, row

    best = heapq.nlargest(query.best, numbered(), key=lambda entry: (entry[0], -entry[1]))
    taken = {number for _, number, _ in best}
    rest = (entry for entry in numbered() if entry[1] not in taken)
    worst = heapq.nsmallest(query.worst, rest, key=lambda entry: entry[:2])
    return {
        f"{what} with the highest rewards": [row for *_, row in best],
        f"{what} with the lowest rewards": [row for *_, row in worst],
    }


def _explain(run: Path, file: Path, query: Query, what: str) -> str:
    """Return the reason why no row was selected, and the remedy."""
    steps = {row["step"] for row in read_rows(file)}
    if steps:
        verb = "has a reward" if (query.best or query.worst) and any(_matching(file, query)) else "matches"
        return f"{file}: none of the {what} {verb}; the file has steps {min(steps)} to {max(steps)}"
    if what == "completions":
        return f"{run} has no completions yet: no evaluation has finished, or the run has no eval_prompts"
    kept = _option(run)
    if kept in ("none", 0):
        return f"{run} keeps no rollouts because run.rollouts = {kept}: set it to a number per step, or to all"
    return f"{run} has no rollouts yet: no step has finished, or its trainer uses no reward function"


def _option(run: Path) -> object:
    """Return `run.rollouts` from the run's configuration; None if the file is damaged."""
    try:
        return load_yaml(RunDir(run).config)["run"]["rollouts"]
    except (ConfigError, KeyError, TypeError):  # the file was edited by hand
        return None


def _count_lines(file: Path) -> int:
    """Count lines without parsing them: a run may have millions."""
    if not file.is_file():
        return 0
    with file.open("rb") as parts:
        return sum(part.count(b"\n") for part in iter(lambda: parts.read(1 << 20), b""))


SCHEMA = 1
LEAST_ROOM = 36
"""Columns that a table leaves to prompts and outputs; with fewer, they are printed below the numbers."""
GAP = 2
"""Columns between those of a list."""
ENDS_OF_EPISODES = ("done", "truncated", "max_turns", "max_new_tokens", "context", "failed")
"""Ends that a row of an episode may have as metrics `episode/END`, of which one is 1."""


def print_rollouts(run: Path, groups: Mapping[str, list[Row]], *, whole: bool) -> None:
    """Print a table for each group of rows, on a narrow terminal texts below numbers; in a pipe, one line per row.

    Args:
        run: the run's folder.
        groups: title -> rows.
        whole: do not truncate long texts.
    """
    console = make_console()
    for title, rows in groups.items():
        cells = [_display_row(row, one_line=not console.is_terminal) for row in rows]
        if console.is_terminal and room_for_texts(cells, console.width) < LEAST_ROOM:
            console.print(
                Text(f"{run}: {title}"), *(each for row in cells for each in stacked(row, whole=whole)), sep="\n"
            )
            continue
        table = make_table(cells, title=f"{run}: {title}", whole=whole)
        table.title = None  # it would be broken at the width of the table
        if not console.is_terminal:
            table.box = None
        console.print(Text(f"{run}: {title}", style="table.title"), soft_wrap=True)
        console.print(table)


def rollouts_as_json(run: Path, groups: Mapping[str, list[Row]]) -> str:
    """Return the rows of all groups in one JSON list, unchanged from the file."""
    rows = [row for group in groups.values() for row in group]
    return _as_json({"run": str(run), "rows": rows})


def print_runs(runs: list[RunSummary]) -> None:
    """Print one row per run; on a terminal that is too narrow, its numbers are on a second line."""
    console, heads = make_console(), [field.name for field in attrs.fields(RunSummary)]
    cells = [[str(value) for value in attrs.astuple(run)] for run in runs]
    widths = [max(map(cell_len, column)) for column in zip(heads, *cells, strict=True)]
    if console.is_terminal and sum(widths) + GAP * (len(widths) - 1) > console.width:
        for run in runs:
            console.print(Text.assemble((run.run, "bold"), f"  {run.changed}"), soft_wrap=True)
            console.print(f"  {run.steps} steps, {run.rollouts} rollouts, {run.completions} completions")
        return
    table = make_list(*heads)
    for row in cells:
        table.add_row(*map(Text, row))
    console.print(table)


def runs_as_json(runs: list[RunSummary]) -> str:
    """Return the content of `print_runs` as JSON."""
    return _as_json({"runs": [attrs.asdict(run) for run in runs]})


def _display_row(row: Row, *, one_line: bool) -> Row:
    """Return a row for display: messages in place of templates, its end in words, newlines escaped if `one_line`."""
    displayed = display_row(row) | ({"end": _end_of(row)} if "ended" in row else {})
    for key in ("prompt", "output"):
        if one_line and key in displayed:
            displayed[key] = str(displayed[key]).replace("\n", "\\n")
    return displayed


def _end_of(row: Row) -> str:
    """Return why an episode ended, if the row has its metrics, and otherwise whether the output was cut off."""
    ends = (end for end in ENDS_OF_EPISODES if row.get(f"episode/{end}"))
    return next(ends, "ended" if row["ended"] else "cut")


def _as_json(document: dict[str, object]) -> str:
    return json.dumps({"schema": SCHEMA, "rlcore": __version__, **document}, indent=2)


def command(parser: argparse.ArgumentParser) -> Callable[[argparse.Namespace], int]:
    """Add the arguments of `rlcore rollouts` to its parser, and return the function that runs it."""
    parser.description = "Print rollouts of a run: by default, those of its last step that has any."
    parser.add_argument(
        "run", metavar="RUN", nargs="?", help="folder of a run, or its name under ./runs; if omitted, list those runs"
    )
    parser.add_argument(
        "--step", type=_steps, metavar="N|A:B", help="rollouts of step N, or of steps A to B; A or B may be omitted"
    )
    parser.add_argument("--best", type=_count, default=0, metavar="N", help="the N rollouts with the highest rewards")
    parser.add_argument("--worst", type=_count, default=0, metavar="N", help="the N rollouts with the lowest rewards")
    parser.add_argument(
        "--grep", default="", metavar="TEXT", help="rollouts whose prompt or output contains TEXT, ignoring case"
    )
    parser.add_argument("--completions", action="store_true", help="print completions of evaluations instead")
    parser.add_argument("--full", action="store_true", help="do not truncate long texts")
    parser.add_argument("--json", action="store_true", help="print JSON with a schema number")
    return partial(_rollouts, parser)


def _rollouts(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> int:
    from rlcore_report.run_files import ROOT, find_run

    query = Query(arguments.step, arguments.best, arguments.worst, arguments.grep)
    if arguments.run is None:
        if arguments.completions or not query.is_empty:
            parser.error("the following arguments are required: RUN")
        runs = list_runs(ROOT)
        if arguments.json:
            print(runs_as_json(runs))
        else:
            print_runs(runs)
        return 0
    run = find_run(arguments.run)
    groups = select(run, query, completions=arguments.completions)
    if arguments.json:
        print(rollouts_as_json(run, groups))
    else:
        print_rollouts(run, groups, whole=arguments.full)
    return 0


def _steps(text: str) -> tuple[int, float]:

    try:
        return parse_steps(text)
    except ConfigError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _count(text: str) -> int:
    if not (text.isdecimal() and int(text)):
        raise argparse.ArgumentTypeError(f"{text!r}: must be a whole number, at least 1")
    return int(text)
