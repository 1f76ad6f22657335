"""Bounded, timed calls of environments, those of an episode in one thread; coroutines run on one event loop."""

from __future__ import annotations

import asyncio
import functools
import inspect
import os
import threading
import time
from collections import deque
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from typing import Any

from rlcore.components import describe_error
from rlcore.errors import ConfigError
from rlcore.rewards.values import end_with_interpreter
from rlcore_environments.worker import OwnThread

POLL_S = 0.05
"""The longest wait for a call whose turn may come at any moment."""
LOOK_S = 1.0
"""The longest wait of all; where a wait cannot be interrupted, Ctrl-C is handled between two of them."""
REMOTE_MARGIN_S = 1.0
"""What a call may take here beyond its limit in another process, before its episode fails."""
MAIN = "data.episodes.thread=main"
"""The option with which all calls run in the main thread."""
_OF_THREADS = ("main thread", "SQLite objects created in a thread", "_thread._local", "no current event loop in thread")
"""What errors of code contain that depends on the thread in which it runs."""
_running, _watching = threading.local(), threading.Lock()


class CallTooLate(Exception):
    """A call of an environment did not return in time."""


class Pending:
    """A call that was started, and may wait for its turn.

    Args:
        calls: what started it.
        function: what is called.
        thread: that of its episode; None for a thread that ends with the call.
        is_last: whether the thread ends with it.
    """

    def __init__(
        self, calls: Calls, function: Callable[[], object], thread: OwnThread | None, *, is_last: bool
    ) -> None:
        self.function, self.deadline, self.settled = function, 0.0, threading.Event()
        self.thread, self.is_last = thread or OwnThread("rlcore-environment"), is_last or thread is None
        self.task: Future[Any] | None = None
        self._calls, self._found = calls, None
        self._error: BaseException | None = None

    def result(self) -> Any:
        """Return or raise what the function does.

        Raises:
            CallTooLate: it has not returned within the time limit, counted from its beginning.
        """
        if self.failed():
            raise self._error  # type: ignore[misc]  # it is not None
        return self._found

    def failed(self) -> bool:
        """Wait for the function, and return whether it raised or was too late."""
        while not self.settled.wait(self._calls.expire()):
            pass
        return self._error is not None

    def settle(self, found: Any = None, error: BaseException | None = None) -> None:
        """Set what `result` returns or raises."""
        self._found, self._error = found, error
        self.settled.set()


class Calls:
    """Starts calls, of which at most `limit` run at a time, each in a thread.

    The time of a call counts from its beginning, not from the reading of its result. A call that is too late no longer
    counts, and the thread of its episode is replaced: whoever starts a call or waits for one looks for late ones.

    Args:
        limit: most calls at a time.
        timeout_s: seconds that a call may take.
        in_main: run every call at once, in the main thread and without a limit, before `start` returns.
    """

    def __init__(self, limit: int, timeout_s: float, *, in_main: bool = False) -> None:
        self.limit, self.timeout_s, self.in_main = limit, timeout_s, in_main
        self._lock, self._waiting, self._begun = threading.Lock(), deque[Pending](), dict[Pending, threading.Thread]()

    def start(
        self, function: Callable[..., object], *args: object, thread: OwnThread | None = None, is_last: bool = False
    ) -> Pending:
        """Start a call; what it returns is awaited if it is a coroutine.

        Args:
            function: what is called.
            args: its arguments.
            thread: that of the episode; None for a thread that ends with the call.
            is_last: end the thread after the call.

        Raises:
            ConfigError: calls run in the main thread, and this is another one.
        """
        call = Pending(self, functools.partial(function, *args), thread, is_last=is_last)
        if self.in_main:
            self._run_here(call)
            return call
        with self._lock:
            self._waiting.append(call)
        self.expire()
        return call

    def expire(self) -> float:
        """End calls that are too late, let others begin in their place, and return the seconds until the next end."""
        with self._lock:
            now = time.monotonic()
            for call, thread in [(call, thread) for call, thread in self._begun.items() if call.deadline <= now]:
                del self._begun[call]
                if call.task is not None:
                    call.task.cancel()
                call.thread.replace()
                _watch(thread)
                call.settle(
                    error=CallTooLate(f"did not return within data.episodes.timeout_s = {self.timeout_s:g} seconds")
                )
            self._begin_waiting()
            next_end = min((call.deadline for call in self._begun), default=now + POLL_S)
            return min(max(next_end - now, 0.0), LOOK_S)

    def allow(self, call: Pending, seconds: float) -> None:
        """Let a call take so many seconds from now, if that is more than it has left."""
        with self._lock:
            call.deadline = max(call.deadline, time.monotonic() + seconds)

    def _begin_waiting(self) -> None:
        """Let calls begin as long as fewer than `limit` run; the caller holds the lock."""
        while self._waiting and len(self._begun) < self.limit:
            call = self._waiting.popleft()
            call.deadline = time.monotonic() + self.timeout_s
            try:
                self._begun[call] = call.thread.start(functools.partial(self._work, call))
            except RuntimeError as error:  # there are as many threads as the system allows
                call.settle(error=error)

    def _work(self, call: Pending, release: Callable[[], None]) -> None:
        """Run a call in its thread, and let the next one begin."""
        _running.allow = functools.partial(self.allow, call)
        outcome = _outcome(call)
        with self._lock:
            release()
            if self._begun.pop(call, None) is None:  # it was too late
                return
            call.settle(*outcome)
            if call.is_last:
                call.thread.end()
            self._begin_waiting()

    def _run_here(self, call: Pending) -> None:
        if threading.current_thread() is not threading.main_thread():
            raise ConfigError(
                f"{MAIN}: episodes of this run are sampled in another thread, such as by an asynchronous sampler; "
                "leave it out, or set data.episodes.isolate=process, whose process has a main thread of its own"
            )
        runs_inline(True)
        try:
            found, error = _outcome(call)
        finally:
            runs_inline(False)
        if isinstance(error, KeyboardInterrupt):
            raise error
        call.settle(found, error)


def runs_inline(value: bool | None = None) -> bool:
    """Return whether the call that runs in this thread runs in the main one by choice, so that tools run in it too.

    Args:
        value: what to return from now on in this thread; None to change nothing.
    """
    if value is not None:
        _running.inline = value
    return bool(getattr(_running, "inline", False))


def thread_advice(text: str) -> str:
    """Return what helps against an error that code raises because of the thread it runs in; empty for others."""
    if not any(mark in text for mark in _OF_THREADS):
        return ""
    return (
        "; each episode has a thread of its own, in which make, reset, step and close run, and its tools in another: "
        f"create there what belongs to a thread, or set {MAIN}"
    )


def allow_more(seconds: float) -> None:
    """Let the call that runs in this thread take so many seconds from now, if it has less left; nothing elsewhere."""
    if (allow := allowance()) is not None:
        allow(seconds)


def allowance() -> Callable[[float], None] | None:
    """Return what lets the call that runs in this thread take more time; None if no call does."""
    found: Callable[[float], None] | None = getattr(_running, "allow", None)
    return found


def set_allowance(allow: Callable[[float], None]) -> None:
    """Set what lets the call that runs in this thread take more time, in a process of environments."""
    _running.allow = allow


class Limit:
    """The time that a call in another process may take, which that process may extend, as tools do for each call.

    Args:
        seconds: from now on.
    """

    def __init__(self, seconds: float) -> None:
        self._deadline, self._allow = time.monotonic() + seconds, allowance()

    @property
    def left(self) -> float:
        """The seconds that are left."""
        return self._deadline - time.monotonic()

    def allow(self, seconds: float) -> None:
        """Let the call take so many seconds from now, if it has less left, in this process too."""
        self._deadline = max(self._deadline, time.monotonic() + seconds)
        if self._allow is not None:
            self._allow(seconds + REMOTE_MARGIN_S)


def finished(found: object) -> Any:
    """Return what a call returned, or the result of it if it is a coroutine; called in a thread of a call."""
    return background(found).result() if inspect.isawaitable(found) else found


def _outcome(call: Pending) -> tuple[object, BaseException | None]:
    try:
        found = call.function()
        if inspect.isawaitable(found):
            call.task = background(found)
            if call.settled.is_set():  # it became too late before there was a task to cancel
                call.task.cancel()
            found = call.task.result()
    except BaseException as error:  # noqa: BLE001  raised again where the result is read
        return None, error
    return found, None


def _watch(thread: threading.Thread) -> None:
    """Note a thread that is too late, so that the process can end although it runs."""
    with _watching:
        late = _late(os.getpid())
        late[:] = [each for each in late if each.is_alive()] + [thread]


@functools.cache
def _late(process: int) -> list[threading.Thread]:  # noqa: ARG001  a forked child has none of the threads
    """Return the late threads of this process, which one thread watches."""
    late: list[threading.Thread] = []
    end_with_interpreter(lambda: any(thread.is_alive() for thread in late))
    return late


def background(found: Awaitable[Any]) -> Future[Any]:
    """Run a coroutine on the event loop of environments."""
    return asyncio.run_coroutine_threadsafe(_awaited(found), event_loop(os.getpid()))


async def _awaited(found: Awaitable[Any]) -> object:
    try:
        return await found
    except (SystemExit, KeyboardInterrupt) as error:  # which would end the event loop, and all that runs on it
        raise RuntimeError(f"it raised {describe_error(error)}") from error


@functools.cache
def event_loop(process: int) -> asyncio.AbstractEventLoop:
    """Start the event loop of this process; a forked child inherits no threads and starts a loop of its own."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name=f"rlcore-environments-{process}", daemon=True).start()
    return loop
