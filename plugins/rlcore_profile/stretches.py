"""What a profile holds: rows of phases, in nanoseconds, for stretches of a run, and the events of its trace."""

from __future__ import annotations

from contextlib import AbstractContextManager

import attrs

Path = tuple[str, ...]
"""Names a phase by those it lies in: ("evaluate", "generate")."""


@attrs.define
class PhaseRow:
    """Hold what one phase took, in nanoseconds, how often it was entered, and the tokens it was about."""

    total: int = 0
    own: int = 0
    calls: int = 0
    tokens: int = 0

    def add(self, more: PhaseRow) -> None:
        """Add what another row holds."""
        self.total += more.total
        self.own += more.own
        self.calls += more.calls
        self.tokens += more.tokens


@attrs.define
class Stretch:
    """Hold the phases of a stretch of the run: a step, or what lies before and after the steps.

    Attributes:
        wall: nanoseconds.
        rows: phases of the thread that drives the run, by their path: ("evaluate", "generate").
        beside: phases of other threads, and what was awaited.
        num_steps: steps in it.
        first_step, last_step: their numbers, 0 where there is none.
    """

    wall: int = 0
    rows: dict[Path, PhaseRow] = attrs.field(factory=dict)
    beside: dict[Path, PhaseRow] = attrs.field(factory=dict)
    num_steps: int = 0
    first_step: int = 0
    last_step: int = 0

    @property
    def other(self) -> int:
        """Return the nanoseconds that no phase took."""
        return self.wall - sum(row.own for row in self.rows.values())

    def merge(self, more: Stretch) -> None:
        """Add what another stretch took."""
        self.wall += more.wall
        self.num_steps += more.num_steps
        self.first_step, self.last_step = self.first_step or more.first_step, more.last_step or self.last_step
        for mine, theirs in ((self.rows, more.rows), (self.beside, more.beside)):
            for path, row in theirs.items():
                mine.setdefault(path, PhaseRow()).add(row)


@attrs.frozen
class Event:
    """Hold one passage of a phase, for the trace: nanoseconds of the clock, and the number of its thread's track.

    What is awaited is on no track: several such may go on at once.
    """

    name: str
    track: int | None
    begun: int
    ended: int


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
