"""What is open at a moment: on each thread phases, one in another."""

from __future__ import annotations

from contextlib import AbstractContextManager

import attrs

from rlcore.profiling.stretches import Path


@attrs.define(eq=False)
class Frame:
    """Hold a phase that is open: its path, when it began, and what has been counted in it since."""

    path: Path
    begun: int
    range: AbstractContextManager[object]
    is_background: bool = False
    inner: int = 0
    tokens: int = 0

    @property
    def around(self) -> Path:
        """Return the path of what phases in this one lie in."""
        return self.path[:-1] if self.is_background else self.path


@attrs.define(eq=False)
class Track:
    """Hold the open phases of one thread."""

    number: int
    frames: list[Frame] = attrs.field(factory=list)
