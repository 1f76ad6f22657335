"""The records of a profile: times of phases per stretch of a run, in nanoseconds, and events of the trace."""

from __future__ import annotations

from contextlib import AbstractContextManager

import attrs

Path = tuple[str, ...]
"""Names of the enclosing phases, outermost first, and of the phase itself: ("evaluate", "generate")."""


@attrs.define
class PhaseRow:
    """The accumulated times of one phase.

    Attributes:
        total: nanoseconds in the phase.
        own: nanoseconds in the phase but outside the phases within it.
        calls: number of times the phase was entered.
        tokens: number of tokens processed in the phase.
    """

    total: int = 0
    own: int = 0
    calls: int = 0
    tokens: int = 0

    def add(self, more: PhaseRow) -> None:
        """Add the numbers of another row."""
        self.total += more.total
        self.own += more.own
        self.calls += more.calls
        self.tokens += more.tokens


@attrs.define
class Stretch:
    """The phases of a stretch of the run: one or more steps, or the time before, between and after them.

    Attributes:
        wall: nanoseconds from the beginning of the stretch to its end.
        rows: phases of the main thread by path.
        beside: phases of other threads and awaited blocks, by path.
        num_steps: number of steps in the stretch.
        first_step, last_step: the numbers of its first and last step; 0 if it contains no step.
    """

    wall: int = 0
    rows: dict[Path, PhaseRow] = attrs.field(factory=dict)
    beside: dict[Path, PhaseRow] = attrs.field(factory=dict)
    num_steps: int = 0
    first_step: int = 0
    last_step: int = 0

    @property
    def other(self) -> int:
        """Return the nanoseconds of the main thread outside any phase."""
        return self.wall - sum(row.own for row in self.rows.values())

    def merge(self, more: Stretch) -> None:
        """Add the times and steps of another stretch."""
        self.wall += more.wall
        self.num_steps += more.num_steps
        self.first_step, self.last_step = self.first_step or more.first_step, more.last_step or self.last_step
        for mine, theirs in ((self.rows, more.rows), (self.beside, more.beside)):
            for path, row in theirs.items():
                mine.setdefault(path, PhaseRow()).add(row)


@attrs.frozen
class Event:
    """One call of a phase, as an event of the trace.

    Attributes:
        name: the phase.
        track: number of its thread's track; None for an awaited block, since several may overlap on one thread.
        begun, ended: nanoseconds of the clock.
    """

    name: str
    track: int | None
    begun: int
    ended: int


@attrs.define(eq=False)
class Frame:
    """A phase that is open on a thread.

    Attributes:
        path: the path of the phase.
        begun: nanoseconds of the clock at which the phase, or the current stretch, began.
        range: the block that marks the phase in the trace of operators.
        is_background: whether inner phases are listed beside this one.
        inner: nanoseconds of the phases directly within it since `begun`.
        tokens: tokens counted since `begun`.
    """

    path: Path
    begun: int
    range: AbstractContextManager[object]
    is_background: bool = False
    inner: int = 0
    tokens: int = 0

    @property
    def around(self) -> Path:
        """Return the path under which inner phases are listed."""
        return self.path[:-1] if self.is_background else self.path


@attrs.define(eq=False)
class Track:
    """The open phases of one thread, outermost first."""

    number: int
    frames: list[Frame] = attrs.field(factory=list)
