"""How far a run is, and how it ends."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import ExitStack

import attrs

from rlcore.plugins.observers import Observers
from rlcore.types import Metrics


@attrs.define(eq=False, kw_only=True)
class Progress:
    """How far a run is, and whether it is to end.

    Attributes:
        total_steps: yields after which the run ends, None where only time bounds it.
        step: yields of the trainer so far.
        metrics: the last value of every metric so far.
        started: clock reading at which this process began, in seconds.
        elapsed_before_s: seconds the run had taken before it was resumed.
        stop_reason: why the run is to end after the current step; empty if it is not.
        was_interrupted: whether a signal ended the run.
        signal: its name; empty if none came to this process.
        signalled: returns whether a signal has requested the end of the run.
    """

    total_steps: int | None = None
    step: int = 0
    metrics: Metrics = attrs.field(factory=dict)
    started: float = attrs.field(factory=time.monotonic)
    elapsed_before_s: float = 0.0
    stop_reason: str = ""
    was_interrupted: bool = False
    signal: str = ""
    signalled: Callable[[], bool] = lambda: False

    @property
    def elapsed_s(self) -> float:
        """Return the seconds the run has taken, including the time before it was resumed."""
        return self.elapsed_before_s + time.monotonic() - self.started

    @property
    def is_stopping(self) -> bool:
        """Whether the run ends after the current step, because of a signal or a request."""
        return bool(self.stop_reason) or self.signalled()


@attrs.define(eq=False)
class Closing:
    """What a run holds open, and closes however it ends.

    Attributes:
        progress: how far the run is.
        held: closes samplers and rewards at the end of the run.
        claimed: deletes the folder of a run whose first step fails; closed after the first step.
    """

    _observers: Observers
    progress: Progress
    held: ExitStack = attrs.field(factory=ExitStack)
    claimed: ExitStack = attrs.field(factory=ExitStack)

    def hold(self, close: Callable[[], object], plugin: str) -> None:
        """Call `close` at the end of the run; an error in it is logged."""
        self.held.callback(self._close, close, plugin)

    def _close(self, close: Callable[[], object], plugin: str) -> None:
        with self._observers.fence.around(plugin, "close", self.progress.step, event="could not be closed"):
            close()
