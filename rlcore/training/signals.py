"""Turn Ctrl-C and SIGTERM into a wish to stop after the current step."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any, Self

SIGNALS = (signal.SIGINT, signal.SIGTERM)
ECHO_S = 1.0
"""torchrun passes Ctrl-C on to processes that the terminal has already sent it to: one press, two signals."""


class StopRequest:
    """Note the first SIGINT or SIGTERM in `requested`, and let the second end the program with KeyboardInterrupt.

    Handlers are installed for the length of the `with` block, and only in the main thread (Python allows no other); a
    signal that the parent process had us ignore stays ignored.

    Args:
        step: returns the number of the step in progress, for the message.
    """

    def __init__(self, step: Callable[[], int]) -> None:
        self.requested = False
        self._step = step
        self._signalled_at: float | None = None
        self._previous: dict[signal.Signals, Any] = {}

    def request(self) -> None:
        """Ask for the stop without a signal."""
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
        if self._signalled_at is None:
            self.requested, self._signalled_at = True, now
            _say(f"{name}: finishing step {self._step()}, then saving; press again to stop at once")
        elif "TORCHELASTIC_RUN_ID" not in os.environ or now - self._signalled_at > ECHO_S:
            self._restore()
            _say(f"{name} again: stopping at once")
            raise KeyboardInterrupt

    def _restore(self) -> None:
        while self._previous:
            number, previous = self._previous.popitem()
            signal.signal(number, previous)


def _say(line: str) -> None:
    """Write straight to file descriptor 2: a handler may run while sys.stderr is in the middle of a write."""
    if os.environ.get("RANK", "0") in {"", "0"}:
        try:
            os.write(2, f"\n{line}\n".encode())
        except OSError:
            return
