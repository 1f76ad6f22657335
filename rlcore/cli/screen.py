"""Consoles and tables for standard output, on a terminal or in a pipe."""

from __future__ import annotations

import sys

from rich.console import Console
from rich.table import Table

from rlcore.loggers.terminal import TerminalConsole


class _Console(TerminalConsole):
    """A console for which a closed pipe, as after `| head`, is not an error."""

    def on_broken_pipe(self) -> None:
        """Raise BrokenPipeError, which `rlcore.cli.main` handles; rich itself would exit with 1."""
        raise BrokenPipeError


def make_console() -> Console:
    """Return a console that wraps lines on a terminal; in a pipe, each row is one line of plain text."""
    return _Console(highlight=False) if sys.stdout.isatty() else _Console(highlight=False, width=10_000, no_color=True)


def make_list(*columns: str) -> Table:
    """Return a table without borders, with these column headers."""
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for column in columns:
        table.add_column(column, overflow="fold")
    return table
