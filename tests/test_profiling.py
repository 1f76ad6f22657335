"""Tests of profiling marks: they forward to the recorder, if there is one; a step's tokens are counted."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pytest
import torch

from rlcore import profiling
from rlcore.profiling import StepTokens, counting, note_sampled, note_scored, phase, running
from rlcore.types import Trajectories


class Log:
    """Recorder that lists its calls."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    @contextmanager
    def block(self, kind: str, name: str) -> Iterator[None]:
        self.calls.append(f"{kind} {name}")
        try:
            yield
        finally:
            self.calls.append(f"end {name}")

    def phase(self, name: str) -> AbstractContextManager[object]:
        return self.block("phase", name)

    def background(self, name: str) -> AbstractContextManager[object]:
        return self.block("background", name)

    def awaited(self, name: str) -> AbstractContextManager[object]:
        return self.block("awaited", name)

    def count_tokens(self, tokens: int) -> None:
        self.calls.append(tokens)

    def begin_step(self, done: int) -> None:
        self.calls.append(("begin", done))

    def end_steps(self, done: int) -> None:
        self.calls.append(("end", done))


@pytest.fixture
def log() -> Log:
    return Log()


@profiling.timed("double")
def double(number: int) -> int:
    return 2 * number


@profiling.timed_each("count")
def count(most: int) -> Iterator[int]:
    yield from range(most)


def mark_everything() -> None:
    profiling.begin_step(3)
    with profiling.background("driver"), phase("update"):
        profiling.count_tokens(torch.tensor([True, False, True]))
    with profiling.awaited("judge"):
        assert double(4) == 8
    assert list(count(2)) == [0, 1]
    profiling.end_steps(4)


def test_every_profiling_mark_reaches_the_recorder(log: Log) -> None:
    with running(log):
        mark_everything()
    assert log.calls == [
        ("begin", 3), "background driver", "phase update", 2, "end update", "end driver",
        "awaited judge", "phase double", "end double", "end judge",
        "phase count", "end count", "phase count", "end count", "phase count", "end count", ("end", 4),
    ]  # fmt: skip


def test_marks_do_nothing_without_a_recorder(log: Log) -> None:
    with running(log):
        pass
    mark_everything()
    assert log.calls == []
    assert phase("a") is profiling.background("b") is profiling.awaited("c")


def test_a_nested_recorder_replaces_the_outer_one_until_it_ends_even_by_an_error(log: Log) -> None:
    inner = Log()
    with running(log):
        with pytest.raises(KeyboardInterrupt), running(inner), phase("a"):
            raise KeyboardInterrupt
        with phase("b"):
            pass
    assert (inner.calls, log.calls) == (["phase a", "end a"], ["phase b", "end b"])


def test_marks_of_every_thread_reach_the_recorder(log: Log) -> None:
    with running(log):
        thread = threading.Thread(target=double, args=(1,))
        thread.start()
        thread.join()
    assert log.calls == ["phase double", "end double"]


def test_a_timed_function_keeps_its_name() -> None:
    assert (double.__name__, count.__name__) == ("double", "count")


@pytest.fixture
def tokens() -> Iterator[StepTokens]:
    with counting() as count:
        yield count


def test_tokens_scored_without_gradients_do_not_count_as_trained(tokens: StepTokens) -> None:
    batch = Trajectories.stack([[1, 2, 3], [4, 5]], [[False, True, True], [False, True]])
    with torch.no_grad():
        note_scored(batch.action_mask)
    assert tokens.counts() == (0, 0)
    note_scored(batch.action_mask)
    note_scored(batch.action_mask)
    assert tokens.counts() == (0, 6)
    note_sampled(batch.action_mask)
    assert tokens.counts() == (3, 6)


def test_the_token_counts_of_a_nested_run_are_separate(tokens: StepTokens) -> None:
    chosen = torch.ones(2, 3, dtype=torch.bool)
    note_sampled(chosen)
    with counting() as inner:
        note_sampled(chosen[:1])
    note_sampled(chosen)
    assert (int(tokens.sampled), int(inner.sampled)) == (12, 3)
