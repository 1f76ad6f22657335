"""Numbers of environments: rewards and info of any size and kind, and their means over episodes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from env_games import play

from rlcore.protocols import Step, Turn


def answering(answer: Any) -> type:
    class Made:
        def reset(self, row: Any, *, seed: int) -> str:
            return "go"

        def step(self, turn: Turn) -> Any:
            return answer

    return Made


def test_numbers_of_any_library_in_info_are_metrics_and_others_are_left_out() -> None:
    info = {
        "success": np.bool_(True), "score": np.float32(0.5), "count": np.int64(3), "flag": True, "huge": 10**400,
        "nan": math.nan, "text": "3", "array": np.ones(2),
    }  # fmt: skip
    batch = play(answering(Step(done=True, info=info)), ["x"])
    assert batch.failures == [""]
    own = {name: values for name, values in batch.numbers.items() if name.startswith("environment/")}
    assert own == {"environment/score": [0.5], "environment/count": [3.0], "environment/flag": [1.0]}
    assert batch.numbers["episode/success"] == [1.0]


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (Step(reward=1e300, done=True), "the reward 1e+300, which is outside the range of float32"),
        (Step(reward={"a": 3e38, "b": 3e38}, done=True), "which is outside the range of float32"),
        (Step(reward=-(10**400), done=True), "the reward -inf, which is not finite"),
        (10**400, "the reward inf, which is not finite"),
        (Step("on", reward=3e38), "episode 0, turn 2: the sum of the rewards is 6e+38, outside the range of float32"),
    ],
)
def test_a_reward_that_float32_cannot_hold_fails_its_episode(answer: Any, message: str) -> None:
    batch = play(answering(answer), ["x", "y"], max_failed=1.0)
    assert message in batch.failures[0]
    assert bool(batch["rewards"].isfinite().all())
