"""Write to standard output, for a person or into a pipe."""

from __future__ import annotations

import sys

from rich.console import Console
from rich.table import Table


class _Console(Console):
    """A console that lets a reader that has gone, such as head, be no error."""

    def on_broken_pipe(self) -> None:
        """Leave it to the command line, where rich would exit with 1."""
        raise BrokenPipeError


def make_console() -> Console:
    """Make a console that wraps for a person only: in a pipe a row stays a line."""
    return _Console(highlight=False) if sys.stdout.isatty() else _Console(highlight=False, width=10_000, no_color=True)


def make_list(*columns: str) -> Table:
    """Make a table without lines, of one row a thing."""
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for column in columns:
        table.add_column(column, overflow="fold")
    return table
