"""Tests of profiling asynchronous rewards: waiting time and reward duration are each recorded once."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from hand_profile import MS, Clock

from rlcore.profiling import running
from rlcore.rewards.combine import Rewards, Scorer
from rlcore.training.rollout import collect
from rlcore.types import Prompt, Trajectories
from rlcore_report.profile.recorder import Frame, Profile
from rlcore_testing.small import make_tokenizer

PROMPTS = [Prompt("a", (1,)), Prompt("b", (2,))]
BATCH = Trajectories.stack([[1, 3], [2, 4]], [[False, True]] * 2)


class Watched(Profile):
    """Manual clock that reports, through `waits`, when the driving thread waits for rewards."""

    waits: dict[int, threading.Event]

    def enter(self, name: str, *, is_background: bool = False) -> Frame:
        frame = super().enter(name, is_background=is_background)
        if name == "awaiting" and frame.path[-2] == "reward functions":
            next(event for event in self.waits.values() if not event.is_set()).set()
        return frame


@pytest.fixture
def clock() -> Clock:
    return Clock()


def profiled(clock: Clock, judges: Sequence[Callable[..., Any]], sample: Any, *, overlap: bool) -> tuple[Any, ...]:
    """Profile one collect step; return its rows, the background rows and the unattributed time, in milliseconds."""
    profile = Watched(clock=clock)
    profile.waits = WAITS
    scorer = Scorer(Rewards.build([(judge, 1.0) for judge in judges]), make_tokenizer(), (), False, "step 1")
    with running(profile):
        profile.begin_step(0)
        collect(sample, scorer, PROMPTS, overlap=overlap)
        profile.end_steps(1)
    rows, beside = (
        {"/".join(path): (row.total // MS, row.calls) for path, row in rows.items()}
        for rows in (profile.first.rows, profile.first.beside)
    )
    assert sum(row.own for row in profile.first.rows.values()) + profile.first.other == profile.first.wall
    return rows, beside, profile.first.other // MS


WAITS: dict[int, threading.Event] = {}


@pytest.fixture(autouse=True)
def nobody_waits() -> None:
    WAITS.clear()
    WAITS.update({number: threading.Event() for number in range(3)})


async def until(waited: int) -> None:
    """Return once the run waits for rewards for the `waited`-th time; fail if it does not."""
    for _ in range(5000):
        if WAITS[waited].is_set():
            return
        await asyncio.sleep(0.001)
    raise TimeoutError("nobody waits")


def test_the_time_of_a_coroutine_is_listed_separately_and_only_the_wait_for_it_is_summed(clock: Clock) -> None:
    async def slow(outputs: list[str]) -> list[float]:
        await begun.wait()
        try:
            await until(0)
        finally:
            clock.spend(7)
            done.set()
        return [0.0] * len(outputs)

    async def slower(outputs: list[str]) -> list[float]:
        begun.set()
        await done.wait()
        clock.spend(20)
        return [0.0] * len(outputs)

    def quick(outputs: list[str]) -> list[float]:
        clock.spend(3)
        return [0.0] * len(outputs)

    def sample(prompts: Sequence[Prompt]) -> Trajectories:
        clock.spend(100)
        return BATCH

    begun, done = asyncio.Event(), asyncio.Event()
    rows, beside, other = profiled(clock, [slow, slower, quick], sample, overlap=False)
    assert rows == {
        "reward": (30, 1), "reward/reward functions": (30, 1), "reward/reward functions/slow": (0, 1),
        "reward/reward functions/slower": (0, 1), "reward/reward functions/quick": (3, 1),
        "reward/reward functions/awaiting": (27, 1),
    }  # fmt: skip
    assert beside == {"awaited: slow": (7, 1), "awaited: slower": (27, 1)}
    assert other == 100


def test_the_wait_for_rewards_computed_during_sampling_is_shorter_than_the_rewards_took(clock: Clock) -> None:
    called = [threading.Event(), threading.Event()]

    async def judge(outputs: list[str]) -> list[float]:
        number = sum(event.is_set() for event in called)
        called[number].set()
        await until(number)
        clock.spend(5)
        return [0.0] * len(outputs)

    def sample(prompts: Sequence[Prompt], on_batch: Callable[..., None]) -> Trajectories:
        for row in range(2):
            clock.spend(10)
            on_batch([row], BATCH.rows(torch.tensor([row])))
            assert called[row].wait(300)
        clock.spend(30)
        return BATCH

    rows, beside, other = profiled(clock, [judge], sample, overlap=True)
    assert rows.pop("reward/reward functions/awaiting") == (10, 2)
    assert rows == {"reward": (10, 3), "reward/awaiting": (0, 2), "reward/reward functions": (10, 2)}
    # The first reward took 45 ms and the second 40 ms; the run waited 10 ms of both.
    assert beside["awaited: judge"] == (45 + 40, 2)
    # The reward thread may or may not have resumed when the clock advances.
    assert {name: calls for name, (_, calls) in beside.items()} == {
        "reward functions": 2, "reward functions/judge": 2, "awaited: judge": 2,
    }  # fmt: skip
    assert other == 50
