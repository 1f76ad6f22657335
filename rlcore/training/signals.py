"""Ctrl-C and SIGTERM stop a run after its current step."""

from __future__ import annotations

import os
import signal
import threading
import time
from types import FrameType, TracebackType
from typing import Any, Self

SIGNALS = (signal.SIGINT, signal.SIGTERM)
ECHO_S = 1.0
"""torchrun forwards Ctrl-C to processes that have received it from the terminal already: one press, two signals."""


class StopRequest:
    """Sets `requested` and `name` at the first SIGINT or SIGTERM, and raises KeyboardInterrupt at the second.

    Handlers are installed within the `with` block, and only in the main thread (Python allows no other). A signal that
    was ignored before stays ignored.

    Args:
        step: number of the step in progress or, between steps, of the last one, for the message; the loop counts it up.
    """

    def __init__(self, step: int = 0) -> None:
        self.requested, self.name = False, ""
        self.step = step
        self._signalled_at: float | None = None
        self._previous: dict[signal.Signals, Any] = {}

    def request(self) -> None:
        """Request the stop without a signal."""
        self.requested = True

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in SIGNALS:
                previous = signal.getsignal(number)
                if previous is not None and previous is not signal.SIG_IGN:
                    self._previous[number] = previous
                    signal.signal(number, self._receive)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._restore()

    def _receive(self, number: int, _frame: FrameType | None) -> None:
        name, now = signal.Signals(number).name, time.monotonic()
        self.name = name
        if self._signalled_at is None:
            self.requested, self._signalled_at = True, now
            doing = f"finishing step {self.step}" if self.step else "finishing the evaluation before step 1"
            _print(f"{name}: {doing}, then saving; press again to stop at once")
        elif "TORCHELASTIC_RUN_ID" not in os.environ or now - self._signalled_at > ECHO_S:
            self._restore()
            _print(f"{name} again: stopping at once")
            raise KeyboardInterrupt

    def _restore(self) -> None:
        while self._previous:
            number, previous = self._previous.popitem()
            signal.signal(number, previous)


def _print(line: str) -> None:
    """Write to file descriptor 2 directly: a signal handler may interrupt a write to sys.stderr."""
    if os.environ.get("RANK", "0") in {"", "0"}:
        try:
            os.write(2, f"\n{line}\n".encode())
        except OSError:
            return
