"""Signals to a command that waits for a cluster."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import ray
from ray.exceptions import GetTimeoutError

POLL_S = 0.3
"""How long a signal may wait until it is passed on."""


class Presses:
    """Signals to this process: the first is passed on, and a second Ctrl-C ends the ranks at once."""

    def __init__(self) -> None:
        self.received: list[int] = []

    @contextmanager
    def caught(self) -> Iterator[None]:
        """Receive signals in the block."""
        numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        before = {number: signal.signal(number, lambda got, _: self.received.append(got)) for number in numbers}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def answers(references: Sequence[Any], timeout_s: float, presses: Presses) -> list[Any]:
    """Return what actors of Ray answer.

    Raises:
        GetTimeoutError: one does not in time.
        KeyboardInterrupt: a signal has come meanwhile.
    """
    until, missing = time.monotonic() + timeout_s, list(references)
    while missing:
        if presses.received:
            raise KeyboardInterrupt
        if time.monotonic() > until:
            raise GetTimeoutError(f"no answer within {timeout_s:g} seconds")
        done, missing = ray.wait(missing, timeout=POLL_S)
        ray.get(done)  # raises the error of an actor before the others have answered
    return list(ray.get(list(references)))
