"""A clock that a test advances by hand."""

from __future__ import annotations

MS = 1_000_000


class Clock:
    """Clock that a test advances in milliseconds and that returns nanoseconds."""

    def __init__(self) -> None:
        self.now = 0

    def __call__(self) -> int:
        return self.now * MS

    def spend(self, ms: int) -> None:
        self.now += ms
