"""One attempt at an episode: its environment, which is closed once, whoever made or used it last."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

from rlcore.components import describe_error
from rlcore.errors import RLCoreError
from rlcore.logging import get_logger
from rlcore.protocols import Turn
from rlcore_environments.calls import CallTooLate, finished
from rlcore_environments.factory import Factory, check_environment
from rlcore_environments.worker import OwnThread

log = get_logger("environments")


class EpisodeOver(RLCoreError, RuntimeError):
    """A turn was given to an environment whose episode has ended."""


class Attempt:
    """Makes, resets and steps an environment in one thread, any call of which may be given up.

    Args:
        factory: makes the environment.

    Attributes:
        thread: the thread of its calls; None if environments are in another process.
    """

    def __init__(self, factory: Factory) -> None:
        self._factory, self._lock, self._is_over = factory, threading.Lock(), False
        self._environment: Any = None
        self.thread = None if factory.is_remote else OwnThread("rlcore-environment")

    def reset(self, row: Mapping[str, Any], seed: int) -> Any:
        """Make the environment, and return its first messages; if the attempt is over by then, close what was made."""
        if self._is_over:
            return ()
        made = check_environment(self._factory.make(), self._factory)
        if self._keep(made):
            return made.reset(row, seed=seed)
        close = getattr(made, "close", None)
        return finished(close()) if callable(close) else ()

    def _keep(self, made: Any) -> bool:
        with self._lock:
            if not self._is_over:
                self._environment = made
            return not self._is_over

    def step(self, turn: Turn) -> Any:
        """Return the answer to a turn.

        Raises:
            EpisodeOver: the attempt is over; the environment is not called.
        """
        made = self._environment
        if self._is_over or made is None:
            raise EpisodeOver(
                f"turn {turn.index} comes after the end of its episode, or before its beginning; make a new "
                "environment for each episode, and reset it once"
            )
        return made.step(turn)

    def end(self) -> Callable[[], Any] | None:
        """End the attempt, and return what closes its environment; without that, the thread ends too."""
        with self._lock:
            made, self._environment, self._is_over = self._environment, None, True
        close: Callable[[], Any] | None = getattr(made, "close", None)
        if callable(close):
            return close
        if self.thread is not None:
            self.thread.end()
        return None


def warn_unclosed(error: BaseException) -> None:
    """Log that an environment was not closed: its episode is over, and what it said is known."""
    reason = f"close {error}" if isinstance(error, CallTooLate) else describe_error(error)
    log.warning("an environment could not be closed", error=reason)
