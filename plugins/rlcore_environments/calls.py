"""Bounded, timed calls of environments, in threads of their own; coroutines run on one event loop."""

from __future__ import annotations

import asyncio
import functools
import inspect
import os
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from typing import Any

from rlcore.rewards.calls import end_with_interpreter

POLL_S = 0.05
"""How often a waiting call looks whether it has begun; Ctrl-C is handled between two looks."""


class CallTooLate(Exception):
    """A call of an environment did not return in time."""


class Pending:
    """A call that was started, and may wait for its turn."""

    def __init__(self, calls: Calls, function: Callable[[], Any]) -> None:
        self._calls, self._function = calls, function
        self._begun, self._is_counted, self._lock = threading.Event(), False, threading.Lock()
        self._result: Future[Any] = Future()
        self._task: Future[Any] | None = None
        self._thread = threading.Thread(target=self._work, name="rlcore-environment", daemon=True)
        self._thread.start()

    def result(self) -> Any:
        """Return or raise what the function does.

        Raises:
            CallTooLate: it has not returned within the time limit, counted from its beginning.
        """
        while not self._begun.wait(POLL_S):
            pass
        self._thread.join(self._calls.timeout_s)
        if not self._result.done():
            if self._task is not None:
                self._task.cancel()
            self._free()
            end_with_interpreter(self._thread.is_alive)
            raise CallTooLate(f"did not return within data.episodes.timeout_s = {self._calls.timeout_s:g} seconds")
        return self._result.result()

    def _work(self) -> None:
        self._calls.slots.acquire()
        self._is_counted = True
        self._begun.set()
        try:
            found = self._function()
            if inspect.isawaitable(found):
                self._task = _start(found)
                found = self._task.result()
            self._result.set_result(found)
        except BaseException as error:  # noqa: BLE001  raised again where the result is read
            self._result.set_exception(error)
        finally:
            self._free()

    def _free(self) -> None:
        with self._lock:
            is_counted, self._is_counted = self._is_counted, False
        if is_counted:
            self._calls.slots.release()


class Calls:
    """Starts calls, of which at most `limit` run at a time; a call that is too late no longer counts.

    Args:
        limit: most calls at a time.
        timeout_s: seconds that a call may take.
    """

    def __init__(self, limit: int, timeout_s: float) -> None:
        self.slots, self.timeout_s = threading.Semaphore(limit), timeout_s

    def start(self, function: Callable[..., Any], *args: Any, **named: Any) -> Pending:
        """Start a call in a thread; what it returns is awaited if it is a coroutine."""
        return Pending(self, functools.partial(function, *args, **named))


def finished(found: Any) -> Any:
    """Return what a call returned, or the result of it if it is a coroutine; called in a thread of a call."""
    return _start(found).result() if inspect.isawaitable(found) else found


def _start(found: Awaitable[Any]) -> Future[Any]:
    return asyncio.run_coroutine_threadsafe(_awaited(found), _loop(os.getpid()))


async def _awaited(found: Awaitable[Any]) -> Any:
    return await found


@functools.cache
def _loop(process: int) -> asyncio.AbstractEventLoop:
    """Start the event loop of this process; a forked child inherits no threads and starts a loop of its own."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name=f"rlcore-environments-{process}", daemon=True).start()
    return loop
