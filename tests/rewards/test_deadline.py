"""Tests of time limits of reward functions."""

from __future__ import annotations

import asyncio
import threading
from contextvars import ContextVar

import pytest
import torch
from reward_asking import ask, by_label, by_output

from rlcore.config import structure
from rlcore.errors import ConfigError, RewardError
from rlcore.rewards.values import call_within
from rlcore.settings import RunConfig

LATE = r"^reward function '{}' \(step 3, batch of 3\) did not return within run.reward_timeout_s = 5 seconds; raise "
released = threading.Event()


@pytest.fixture(autouse=True)
def _release():
    released.clear()
    yield
    released.set()


def hangs(samples):
    released.wait(600)
    return [0, 0, 0]


async def hangs_later(samples):
    await asyncio.sleep(600)


def blocks_the_loop(samples):
    async def block():
        released.wait(600)

    return block()


@pytest.mark.parametrize(
    ("reward_fn", "names"),
    [(hangs, "hangs"), (hangs_later, "hangs_later"), (blocks_the_loop, "by_label', 'blocks_the_loop")],
)
def test_functions_that_do_not_return_end_the_call_with_their_names(reward_fn, names):
    with pytest.raises(RewardError, match=LATE.format(names)):
        ask([by_label, by_output, reward_fn], timeout_s=5)


def test_threads_can_wait_for_the_longest_limit_that_is_allowed():
    limit = 1e9
    structure(RunConfig, {"reward_timeout_s": limit})
    assert ask(by_label, timeout_s=limit).totals == ask(by_label).totals
    with pytest.raises(ConfigError, match=r"reward_timeout_s = 10000000000\.0: must lie in \(0, 1000000000\.0\]"):
        structure(RunConfig, {"reward_timeout_s": 10 * limit})


def test_functions_that_return_in_time_give_the_same_scores_as_without_a_limit():
    reward_fn = [by_output, (by_label, 0.5)]
    assert (
        ask(reward_fn, timeout_s=600).by_name
        == ask(reward_fn).by_name
        == {"by_output": [1, 2, 0], "by_label": [1, 2, 0]}
    )


def test_a_timeout_error_of_the_function_itself_is_reported_as_its_error():
    async def refused(samples):
        raise TimeoutError("the judge is away")

    with pytest.raises(
        RewardError, match=r"function 'refused' .* raised TimeoutError: the judge is away at .*deadline\.py"
    ):
        ask(refused, timeout_s=600)


def test_the_thread_of_a_call_has_the_callers_context_and_gradient_mode():
    place = ContextVar("place", default="elsewhere")
    place.set("here")
    for grad in (False, True):
        with torch.set_grad_enabled(grad):
            seen = call_within(30, lambda: (place.get(), torch.is_grad_enabled(), threading.current_thread().daemon))
        assert seen == ("here", grad, True)
