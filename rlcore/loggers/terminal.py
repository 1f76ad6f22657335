"""The console and tables of everything that rich lays out; control characters in texts are escaped."""

from __future__ import annotations

import sys
from collections.abc import Iterable

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.table import Table

from rlcore.safe_text import visible


class TerminalConsole(Console):
    """A console that escapes control characters in every text that it prints; colours are not part of the texts."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Yield the segments of an object, with their texts escaped; rich's own cursor movements stay."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=visible(segment.text))


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
