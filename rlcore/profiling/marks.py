"""Mark phases from anywhere: whoever does the work says so, and need not know of the run it is part of."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, ParamSpec, TypeVar

from rlcore.profiling.phases import NOTHING, Profile

if TYPE_CHECKING:
    from torch import Tensor

P = ParamSpec("P")
R = TypeVar("R")

_running: Profile | None = None


@contextmanager
def running(profile: Profile) -> Iterator[None]:
    """Have all threads' phases counted in `profile` for the length of the block."""
    global _running  # noqa: PLW0603  phases are marked where nobody knows of the run they are part of
    before, _running = _running, profile
    try:
        yield
    finally:
        _running = before


def phase(name: str) -> AbstractContextManager[object]:
    """Return a block whose time is shown under `name` in the profile of the run in progress, if there is one.

    ```python
    with phase("advantages"):
        batch = shaped(batch)
    ```

    Args:
        name: of the phase; blocks of one name are counted together, and within another phase are shown under that.
    """
    return NOTHING if _running is None else _running.phase(name)


def background(name: str) -> AbstractContextManager[object]:
    """Return a block of which all that falls into no phase is shown as the phase `name`, beside those within it."""
    return NOTHING if _running is None else _running.background(name)


def awaited(name: str) -> AbstractContextManager[object]:
    """Return a block of a coroutine, whose time is shown beside the sum, however many go on at once."""
    return NOTHING if _running is None else _running.awaited(name)


def timed_each(name: str) -> Callable[[Callable[P, Iterator[R]]], Callable[P, Iterator[R]]]:
    """Return a decorator that counts what an iterator takes to come to each of its items as the phase `name`."""

    def decorate(function: Callable[P, Iterator[R]]) -> Callable[P, Iterator[R]]:
        @functools.wraps(function)
        def call(*given: P.args, **named: P.kwargs) -> Iterator[R]:
            items = function(*given, **named)
            return items if _running is None else _each(items, name)

        return call

    return decorate


def _each(items: Iterator[R], name: str) -> Iterator[R]:
    while True:
        with phase(name):
            try:
                item = next(items)
            except StopIteration:
                return
        yield item


def timed(name: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Return a decorator that counts all a function takes as the phase `name`."""

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(function)
        def call(*given: P.args, **named: P.kwargs) -> R:
            if _running is None:
                return function(*given, **named)
            with _running.phase(name):
                return function(*given, **named)

        return call

    return decorate


def count_tokens(chosen: Tensor) -> None:
    """Note that the phase in progress is about the tokens that a mask selects, or that an array counts."""
    if _running is not None:
        _running.count_tokens(int(chosen.sum()))


def begin_step(done: int) -> None:
    """Note that `done` steps are done, and that the next begins."""
    if _running is not None:
        _running.begin_step(done)


def end_steps(done: int) -> None:
    """Note that `done` steps are done, and that what follows is part of none."""
    if _running is not None:
        _running.end_steps(done)
