"""Output of `rlcore rollouts`: tables on a terminal, one line per row in a pipe, or JSON."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs
from rich.cells import cell_len
from rich.text import Text

from rlcore._version import __version__
from rlcore.loggers import display_row
from rlcore.loggers.console import make_console, make_list
from rlcore_report.console import make_table, room_for_texts, stacked
from rlcore_report.rollouts.read import RunSummary
from rlcore_report.run_files import Row

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


def _as_json(document: dict[str, Any]) -> str:
    return json.dumps({"schema": SCHEMA, "rlcore": __version__, **document}, indent=2)
