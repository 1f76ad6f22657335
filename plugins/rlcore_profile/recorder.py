"""Measure where time goes: named phases, one in another, on every thread, by one clock.

    total = sum of what a phase took, those within it included
    self  = total less what phases directly within it took
    wall  = sum of self over all phases + other

so the phases of the thread that drives the run, and what is left between them (`other`), add up to its wall time. A
background is a phase that is what is left in it: phases within it stand beside it, and its total is its self. Other
threads have tracks of their own: what goes on there goes on beside, and is no part of the sum; nor is what is awaited,
which belongs to no thread.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from types import TracebackType
from typing import Protocol

from rlcore_profile.stretches import Event, Frame, PhaseRow, Stretch, Track

NOTHING: AbstractContextManager[object] = nullcontext()
TRACED = 6
"""Steps whose phases the trace shows one by one; the table has all of them."""


class Operators(Protocol):
    """What records a framework's operators beside the phases."""

    def begin_step(self, nth: int) -> bool:
        """Note that the nth step of this process begins; tell whether it is recorded, and is slower for it."""
        ...

    def range(self, name: str) -> AbstractContextManager[object]:
        """Return what marks a phase among the operators."""
        ...


class Profile:
    """Keep the times of one run; made on the thread that drives it.

    Args:
        clock: tells nanoseconds.
        wait: called before the clock is read on the driving thread, so that what a device has been asked for is done.
        operators: records operators beside the phases.

    Attributes:
        first: the first whole step of this process, which pays for what is made once.
        steps: the whole steps after it.
        around: what lay before and after the steps, a step that did not come to its end, and those whose operators were
            recorded.
        num_begun: steps that this process began.
        events: what the trace shows.
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
        """Return the names of the tracks: those of their threads."""
        return [thread.name for thread in self._threads]

    def phase(self, name: str) -> AbstractContextManager[object]:
        """Return a block whose time is the phase's; within a phase of the same name it is part of that."""
        frames = self._track().frames
        return NOTHING if frames and frames[-1].path[-1] == name else _Phase(self, name)

    def background(self, name: str) -> AbstractContextManager[object]:
        """Return a block of which what no phase in it takes is the phase `name`."""
        return _Phase(self, name, is_background=True)

    def awaited(self, name: str) -> AbstractContextManager[object]:
        """Return a block, as of a coroutine, that goes on beside the others of its thread; each counts in full."""
        return _Awaited(self, name)

    def count_tokens(self, tokens: int) -> None:
        """Note that the phase that is open on this thread is about so many tokens."""
        if frames := self._track().frames:
            frames[-1].tokens += tokens

    def begin_step(self, done: int) -> None:
        """Note that `done` steps are done, and that the next begins."""
        self.end_steps(done)
        self.num_begun += 1
        if self._operators is not None:
            self._is_recorded = self._operators.begin_step(self.num_begun)
            self._turn(done)  # to begin and end a recording takes long, and is no step's time
        self._number = done + 1

    def end_steps(self, done: int) -> None:
        """Note that `done` steps are done, and that what follows is part of none."""
        self._turn(done)
        self._number = 0

    def close(self, done: int) -> None:
        """End the profile after `done` steps, without the phases that are open, such as that of the calling hook."""
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
        """Close a phase; those of coroutines, which take turns on one thread, need not end in their order."""
        track = self._track()
        frame.range.__exit__(None, None, None)
        now = self._now() if track is self._main else self._clock()
        if frame not in track.frames:  # it was opened on another thread, and is none of this one's
            return
        at = track.frames.index(frame)
        del track.frames[at]
        self._settle(track, frame, now, track.frames[at - 1] if at else None, calls=1)

    def now(self) -> int:
        """Tell the nanoseconds of the clock, on any thread, without waiting for a device."""
        return self._clock()

    def note_awaited(self, name: str, begun: int) -> None:
        """Add what was awaited, from `begun` until now."""
        now = self.now()
        with self._lock:
            self._open.beside.setdefault((name,), PhaseRow()).add(PhaseRow(now - begun, now - begun, 1))
            self._note(Event(name, None, begun, now))

    def _note(self, event: Event) -> None:
        if self.num_begun <= TRACED:
            self.events.append(event)

    def _settle(self, track: Track, frame: Frame, now: int, outer: Frame | None, *, calls: int) -> None:
        """Add what a phase has taken so far to its row and to the phase around it, and have it begin again."""
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
        """End the present stretch and put it where it belongs; phases that are open go on in the next."""
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
        """Return the number of a thread's track: one that came after another of its name goes on with its track."""
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
    """Be one block of a phase."""

    def __init__(self, profile: Profile, name: str, *, is_background: bool = False) -> None:
        self._profile, self._name, self._is_background = profile, name, is_background

    def __enter__(self) -> None:
        self._frame = self._profile.enter(self._name, is_background=self._is_background)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._profile.leave(self._frame)


class _Awaited:
    """Be one block that is awaited."""

    def __init__(self, profile: Profile, name: str) -> None:
        self._profile, self._name = profile, name

    def __enter__(self) -> None:
        self._begun = self._profile.now()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._profile.note_awaited(self._name, self._begun)
