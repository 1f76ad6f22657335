"""The recorder of a run's profile: times of named, nested phases on every thread, read from one clock.

    total = time between entering and leaving a phase, summed over its calls
    self  = total - time of the phases directly within it
    wall  = sum of self over all phases + other

The sum runs over the phases of the main thread, which drives the run; `other` is its time outside any phase. A
background phase counts only the time outside the phases within it: these are listed beside it instead of under it, and
its total equals its self. Phases of other threads, and awaited blocks of coroutines, run concurrently with the main
thread and are not part of the sum.

Also in this file: the records of a profile: times of phases per stretch of a run, in nanoseconds, and events of the
trace.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from types import TracebackType
from typing import Protocol

import attrs

PhasePath = tuple[str, ...]
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
    rows: dict[PhasePath, PhaseRow] = attrs.field(factory=dict)
    beside: dict[PhasePath, PhaseRow] = attrs.field(factory=dict)
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

    path: PhasePath
    begun: int
    range: AbstractContextManager[object]
    is_background: bool = False
    inner: int = 0
    tokens: int = 0

    @property
    def around(self) -> PhasePath:
        """Return the path under which inner phases are listed."""
        return self.path[:-1] if self.is_background else self.path


@attrs.define(eq=False)
class Track:
    """The open phases of one thread, outermost first."""

    number: int
    frames: list[Frame] = attrs.field(factory=list)


NOTHING: AbstractContextManager[object] = nullcontext()
TRACED = 6
"""Number of steps that the trace contains; the table covers all steps."""


class Operators(Protocol):
    """The interface of a recorder of a framework's operators."""

    def begin_step(self, nth: int) -> bool:
        """Begin the nth step of this process; return whether its operators are recorded, which makes it slower."""
        ...

    def range(self, name: str) -> AbstractContextManager[object]:
        """Return a block that marks a phase in the trace of operators."""
        ...


class Profile:
    """The times of one run. The thread that constructs it is the main thread.

    Args:
        clock: returns the time in nanoseconds.
        wait: called before the clock is read on the main thread; synchronizes the device.
        operators: records a framework's operators in addition to the phases.

    Attributes:
        first: the first complete step of this process, which includes one-time costs such as allocations.
        steps: the complete steps after it.
        around: the time before and after the steps, an incomplete step, and steps whose operators were recorded.
        num_begun: number of steps that this process began.
        events: the events of the trace.
    """

    def __init__(
        self,
        *,
        clock: Callable[[], int] = time.perf_counter_ns,
        wait: Callable[[], None] | None = None,
        operators: Operators | None = None,
    ) -> None:
        self._clock, self._wait, self._operators = clock, wait, operators
        self.first, self.steps, self.around = Stretch(), Stretch(), Stretch()
        self.num_begun = 0
        self.events: list[Event] = []
        self._lock, self._local = threading.Lock(), threading.local()
        self._threads: list[threading.Thread] = []
        self._main = self._track()
        self._open, self._number, self._is_recorded = Stretch(), 0, False
        self.begun = self._opened = self._now()

    @property
    def tracks(self) -> list[str]:
        """Return the name of each track's thread."""
        return [thread.name for thread in self._threads]

    def phase(self, name: str) -> AbstractContextManager[object]:
        """Return a block whose time counts as the phase `name`; directly within that phase, the block adds no phase."""
        frames = self._track().frames
        return NOTHING if frames and frames[-1].path[-1] == name else _Phase(self, name)

    def background(self, name: str) -> AbstractContextManager[object]:
        """Return a block whose time outside any inner phase counts as the phase `name`."""
        return _Phase(self, name, is_background=True)

    def awaited(self, name: str) -> AbstractContextManager[object]:
        """Return a block of a coroutine; concurrent blocks of one thread each count in full."""
        return _Awaited(self, name)

    def count_tokens(self, tokens: int) -> None:
        """Add tokens to the innermost open phase of this thread."""
        if frames := self._track().frames:
            frames[-1].tokens += tokens

    def begin_step(self, done: int) -> None:
        """Begin the step after `done` steps."""
        self.end_steps(done)
        self.num_begun += 1
        if self._operators is not None:
            self._is_recorded = self._operators.begin_step(self.num_begun)
            self._turn(done)  # starting and stopping the operator recorder is slow and is not counted in a step
        self._number = done + 1

    def end_steps(self, done: int) -> None:
        """End the last step, of `done`; the time until the next step begins counts in `around`."""
        self._turn(done)
        self._number = 0

    def close(self, done: int) -> None:
        """End the profile after `done` steps; phases that are still open, such as the calling hook's, are dropped."""
        self._main.frames.clear()
        self.end_steps(done)

    def enter(self, name: str, *, is_background: bool = False) -> Frame:
        """Open a phase on this thread."""
        track = self._track()
        outer = track.frames[-1].around if track.frames else ()
        marks = NOTHING if self._operators is None else self._operators.range(name)
        begun = self._now() if track is self._main else self._clock()
        frame = Frame((*outer, name), begun, marks, is_background)
        track.frames.append(frame)
        marks.__enter__()
        return frame

    def leave(self, frame: Frame) -> None:
        """Close a phase; phases of coroutines that share a thread may close in any order."""
        track = self._track()
        frame.range.__exit__(None, None, None)
        now = self._now() if track is self._main else self._clock()
        if frame not in track.frames:  # it was opened on another thread
            return
        at = track.frames.index(frame)
        del track.frames[at]
        self._settle(track, frame, now, track.frames[at - 1] if at else None, calls=1)

    def now(self) -> int:
        """Return the clock's time in nanoseconds, without synchronizing the device; callable on any thread."""
        return self._clock()

    def note_awaited(self, name: str, begun: int) -> None:
        """Add an awaited block that began at `begun` and ends now."""
        now = self.now()
        with self._lock:
            self._open.beside.setdefault((name,), PhaseRow()).add(PhaseRow(now - begun, now - begun, 1))
            self._note(Event(name, None, begun, now))

    def _note(self, event: Event) -> None:
        if self.num_begun <= TRACED:
            self.events.append(event)

    def _settle(self, track: Track, frame: Frame, now: int, outer: Frame | None, *, calls: int) -> None:
        """Add the time of a phase since `frame.begun` to its row and to the enclosing phase, then restart the frame."""
        took = now - frame.begun
        if outer is not None:
            outer.inner += took
        with self._lock:
            rows, own = self._open.rows if track is self._main else self._open.beside, took - frame.inner
            total = own if frame.is_background else took
            rows.setdefault(frame.path, PhaseRow()).add(PhaseRow(total, own, calls, frame.tokens))
            self._note(Event(frame.path[-1], track.number, frame.begun, now))
        frame.begun, frame.inner, frame.tokens = now, 0, 0

    def _turn(self, done: int) -> None:
        """End the current stretch and add it to `first`, `steps` or `around`; open phases continue in the next."""
        now, frames = self._now(), self._main.frames
        for i in reversed(range(len(frames))):
            self._settle(self._main, frames[i], now, frames[i - 1] if i else None, calls=0)
        with self._lock:
            over, number = self._open, self._number
            self._open = Stretch()
        over.wall = now - self._opened
        if number:
            self._note(Event(f"step {number}", self._main.number, self._opened, now))
        self._opened = now
        if not 0 < number <= done or self._is_recorded:
            self.around.merge(over)
            return
        over.num_steps, over.first_step, over.last_step = 1, number, number
        (self.steps if self.first.num_steps else self.first).merge(over)

    def _track(self) -> Track:
        track: Track | None = getattr(self._local, "track", None)
        if track is None:
            track = self._local.track = Track(self._number_of(threading.current_thread()))
        return track

    def _number_of(self, thread: threading.Thread) -> int:
        """Return the number of a thread's track; a thread reuses the track of an ended thread of the same name."""
        with self._lock:
            for number, earlier in enumerate(self._threads):
                if earlier.name == thread.name and not earlier.is_alive():
                    self._threads[number] = thread
                    return number
            self._threads.append(thread)
            return len(self._threads) - 1

    def _now(self) -> int:
        if self._wait is not None:
            self._wait()
        return self._clock()


class _Phase:
    """One block of a phase."""

    def __init__(self, profile: Profile, name: str, *, is_background: bool = False) -> None:
        self._profile, self._name, self._is_background = profile, name, is_background

    def __enter__(self) -> None:
        self._frame = self._profile.enter(self._name, is_background=self._is_background)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._profile.leave(self._frame)


class _Awaited:
    """One awaited block."""

    def __init__(self, profile: Profile, name: str) -> None:
        self._profile, self._name = profile, name

    def __enter__(self) -> None:
        self._begun = self._profile.now()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._profile.note_awaited(self._name, self._begun)
