"""Mark phases for the profile and count the tokens of a step; without a recorder, a mark costs next to nothing.

This module contains the state that is ambient in a process: the recorder, which the functions below call if one is
running, and the token count of the step in progress. Code marks a phase without a reference to its run.

    perf/tokens_per_s = chosen tokens of the step, on all processes / time/step_s

Chosen tokens are those that the step sampled. For a step that sampled none they are the chosen tokens of the sequences
it learned from, that is, which the policy scored with gradients; a sequence counts each time it is scored. Prompts and
padding never count.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, ParamSpec, Protocol, TypeVar

import attrs

if TYPE_CHECKING:
    import torch
    from torch import Tensor

__all__ = ["Recorder", "count_tokens", "phase", "running"]  # the rest is for the core

P = ParamSpec("P")
R = TypeVar("R")


class Recorder(Protocol):
    """What the marks call while a run is profiled; its methods do what the functions of the same names document."""

    def phase(self, name: str) -> AbstractContextManager[object]:
        """Return a block whose time counts as the phase `name`."""

    def background(self, name: str) -> AbstractContextManager[object]:
        """Return a block of which the time outside any inner phase counts as the phase `name`."""

    def awaited(self, name: str) -> AbstractContextManager[object]:
        """Return a block of a coroutine."""

    def count_tokens(self, tokens: int) -> None:
        """Add tokens to the phase that is open on this thread."""

    def begin_step(self, done: int) -> None:
        """Begin the step after `done` steps."""

    def end_steps(self, done: int) -> None:
        """End the last step."""


NOTHING: AbstractContextManager[object] = nullcontext()
_recorder: Recorder | None = None


@contextmanager
def running(recorder: Recorder) -> Iterator[None]:
    """Pass the marks of all threads to `recorder` for the length of the block."""
    global _recorder  # noqa: PLW0603  phases are marked where the run they are part of is not known
    before, _recorder = _recorder, recorder
    try:
        yield
    finally:
        _recorder = before


def phase(name: str) -> AbstractContextManager[object]:
    """Return a block whose time is shown under `name` in the profile of the run in progress, if it is profiled.

    ```python
    with phase("advantages"):
        batch = shaped(batch)
    ```

    Args:
        name: name of the phase; blocks of one name in the same enclosing phase are counted together.
    """
    return NOTHING if _recorder is None else _recorder.phase(name)


def background(name: str) -> AbstractContextManager[object]:
    """Return a block whose time outside any inner phase counts as the phase `name`; inner phases stand beside it."""
    return NOTHING if _recorder is None else _recorder.background(name)


def awaited(name: str) -> AbstractContextManager[object]:
    """Return a block of a coroutine, whose time is shown beside the sum, however many run concurrently."""
    return NOTHING if _recorder is None else _recorder.awaited(name)


def timed_each(name: str) -> Callable[[Callable[P, Iterator[R]]], Callable[P, Iterator[R]]]:
    """Return a decorator that counts the time an iterator takes to produce each of its items as the phase `name`."""

    def decorate(function: Callable[P, Iterator[R]]) -> Callable[P, Iterator[R]]:
        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> Iterator[R]:
            items = function(*args, **kwargs)
            while True:
                with phase(name):
                    try:
                        item = next(items)
                    except StopIteration:
                        return
                yield item

        return call

    return decorate


def timed(name: str) -> Callable[[Callable[P, R]], Callable[P, R]]:
    """Return a decorator that counts the time of each call of a function as the phase `name`."""

    def decorate(function: Callable[P, R]) -> Callable[P, R]:
        @functools.wraps(function)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            with phase(name):
                return function(*args, **kwargs)

        return call

    return decorate


def count_tokens(chosen: Tensor) -> None:
    """Add to the phase in progress the tokens that a mask selects, or that an array counts."""
    if _recorder is not None:
        _recorder.count_tokens(int(chosen.sum()))


def begin_step(done: int) -> None:
    """Begin the step after `done` steps."""
    if _recorder is not None:
        _recorder.begin_step(done)


def end_steps(done: int) -> None:
    """End the last step, of `done`; the time until the next step begins belongs to no step."""
    if _recorder is not None:
        _recorder.end_steps(done)


@attrs.define(eq=False)
class StepTokens:
    """The numbers of chosen tokens that a step has sampled and learned from, kept on the device to avoid waiting."""

    sampled: Tensor | int = 0
    learned: Tensor | int = 0

    def counts(self) -> tuple[float, float]:
        """Return both numbers, of this process, once the device has computed them."""
        return float(self.sampled), float(self.learned)


# Each thread begins with none: a run that a reward function starts in another thread counts its own tokens.
_counting: ContextVar[StepTokens | None] = ContextVar("counting", default=None)


@contextmanager
def counting() -> Iterator[StepTokens]:
    """Count the tokens that are sampled and learned from in the block."""
    tokens = StepTokens()
    before = _counting.set(tokens)
    try:
        yield tokens
    finally:
        _counting.reset(before)


def note_sampled(chosen: Tensor) -> None:
    """Note that the tokens at `chosen`, bool[B, T], were sampled."""
    tokens = _counting.get()
    if tokens is not None:
        tokens.sampled = tokens.sampled + chosen.sum()


def note_scored(chosen: Tensor) -> None:
    """Note that the tokens at `chosen`, bool[B, T], were scored; if gradients are enabled, they are learned from."""
    tokens = _counting.get()
    if tokens is None:
        return
    import torch  # imported late to keep this module light

    if torch.is_grad_enabled():
        tokens.learned = tokens.learned + chosen.sum()


def peak_bytes(device: torch.device) -> int | None:
    """Return the peak memory of this process on its device in bytes; None if the system does not report it.

    On an accelerator it is what torch's allocator has handed out, on the CPU the resident set size.
    """
    if device.type != "cpu":
        import torch

        with suppress(AttributeError, RuntimeError):  # MPS does not record it, and meta has no memory
            return int(torch.get_device_module(device).max_memory_allocated(device))
        return None
    with suppress(OSError, IndexError, ValueError):  # Linux's file of this process, which `exec` resets
        return int(Path("/proc/self/status").read_bytes().split(b"VmHWM:", 1)[1].split(None, 1)[0]) * 1024
    with suppress(ImportError):  # Windows has none
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    return None
