"""Ctrl-C and SIGTERM while a sweep runs."""

from __future__ import annotations

import signal
import time
from types import FrameType, TracebackType
from typing import Any, Self

MOST = 2
"""Signals that wait for the next pause; later ones raise KeyboardInterrupt wherever the process is."""


class Interruptions:
    """Raises KeyboardInterrupt for SIGINT and SIGTERM in `pause` only, within the `with` block.

    An exception that a signal raises anywhere can leave the lock of a `subprocess.Popen` taken, and the wait for that
    process then never ends.
    """

    def __init__(self) -> None:
        self._received = 0
        self._raised = 0
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        self._before = {number: signal.signal(number, self._receive) for number in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _receive(self, _number: int, _frame: FrameType | None) -> None:
        self._received += 1
        if self._received > MOST:
            raise KeyboardInterrupt

    def pause(self, seconds: float) -> None:
        """Sleep.

        Raises:
            KeyboardInterrupt: a signal has come since the last pause, or came during this one.
        """
        time.sleep(seconds)
        if self._received > self._raised:
            self._raised += 1
            raise KeyboardInterrupt
