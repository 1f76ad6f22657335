"""Print what a run sampled, and which runs there are, for a person or for machines: `rlcore rollouts`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs
from rich.text import Text

from rlcore._version import __version__
from rlcore.cli.rollouts.read import Listed, Row
from rlcore.cli.screen import make_console, make_list
from rlcore.loggers.tables import make_table

SCHEMA = 1


def print_rollouts(run: Path, groups: Mapping[str, list[Row]], *, whole: bool) -> None:
    """Print a table for each group of rows; in a pipe, a line for each row.

    Args:
        run: the run's folder.
        groups: rows by what they are.
        whole: print texts however long they are.
    """
    console = make_console()
    for title, rows in groups.items():
        shown = [_shown(row, one_line=not console.is_terminal) for row in rows]
        table = make_table(shown, title=f"{run}: {title}", whole=whole)
        if not console.is_terminal:
            table.box = None
        console.print(table)


def rollouts_as_json(run: Path, groups: Mapping[str, list[Row]]) -> str:
    """Write the rows of all groups, one after the other, as the file has them."""
    rows = [row for group in groups.values() for row in group]
    return _as_json({"run": str(run), "rows": rows})


def print_runs(runs: list[Listed]) -> None:
    """Print a row for each run."""
    table = make_list(*(field.name for field in attrs.fields(Listed)))
    for run in runs:
        table.add_row(*(Text(str(value)) for value in attrs.astuple(run)))
    make_console().print(table)


def runs_as_json(runs: list[Listed]) -> str:
    """Write what `print_runs` prints, for machines."""
    return _as_json({"runs": [attrs.asdict(run) for run in runs]})


def _shown(row: Row, *, one_line: bool) -> Row:
    """Say in words how a text ended, and, where a row is to be one line, spell out the text's own."""
    shown = {**row, "end": "ended" if row["ended"] else "cut"} if "ended" in row else dict(row)
    for key in ("prompt", "output"):
        if one_line and key in row:
            shown[key] = str(row[key]).replace("\n", "\\n")
    return shown


def _as_json(document: dict[str, Any]) -> str:
    return json.dumps({"schema": SCHEMA, "rlcore": __version__, **document}, indent=2)
