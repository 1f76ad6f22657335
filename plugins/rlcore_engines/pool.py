"""Calls in threads that the interpreter does not wait for, as it waits for those of `concurrent.futures`."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")
Calls = queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None]
NAME = "rlcore-engines"


class Pool:
    """Threads that start when they are needed, at most `most` of them; calls begin in their order.

    Args:
        most: calls at a time.
    """

    def __init__(self, most: int = 1) -> None:
        self._most, self._lock = most, threading.Lock()
        self._calls: Calls = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._open = 0

    def submit(self, call: Callable[[], T]) -> Future[T]:
        """Make a call as soon as a thread is free; its future has what the call returns or raises."""
        future = Future[T]()
        future.add_done_callback(self._end_call)
        with self._lock:
            self._open += 1
            self._calls.put((future, call))
            if len(self._threads) < min(self._open, self._most):
                thread = threading.Thread(target=_work, args=(self._calls,), name=NAME, daemon=True)
                self._threads.append(thread)
                thread.start()
        return future

    def _end_call(self, _future: Future[Any]) -> None:
        with self._lock:
            self._open -= 1

    def close(self, patience_s: float) -> None:
        """Cancel the calls that have not begun, and wait up to `patience_s` seconds for each thread to end its own."""
        with self._lock:
            threads, self._threads = self._threads, []
            calls, self._calls = self._calls, queue.SimpleQueue()
        while not calls.empty():
            waiting = calls.get()
            if waiting is not None:
                waiting[0].cancel()
        for _ in threads:
            calls.put(None)
        for thread in threads:
            thread.join(patience_s)


def begin(call: Callable[[], T]) -> Future[T]:
    """Make a call in a thread of its own."""
    future, calls = Future[T](), Calls()
    calls.put((future, call))
    calls.put(None)
    threading.Thread(target=_work, args=(calls,), name=NAME, daemon=True).start()
    return future


def _work(calls: Calls) -> None:
    while (waiting := calls.get()) is not None:
        future, call = waiting
        if future.set_running_or_notify_cancel():
            try:
                future.set_result(call())
            except BaseException as error:  # noqa: BLE001  raised again where the result is read
                future.set_exception(error)
        del waiting, future, call  # and with them what the call holds, such as a copy of weights
