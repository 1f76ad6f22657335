"""The console through which everything that rich lays out is printed; it escapes control characters in texts."""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from rlcore.safe_text import visible


class TerminalConsole(Console):
    """A console that escapes control characters in every text that it prints; colours are not part of the texts."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Yield the segments of an object, with their texts escaped; rich's own cursor movements stay."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=visible(segment.text))
