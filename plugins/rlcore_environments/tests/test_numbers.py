"""Numbers of environments: rewards and info of any size and kind, and their means over episodes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from env_games import Scripted, make_player, make_policy, play, read_prompts

from rlcore.protocols import Step, Turn
from rlcore.settings import SamplingConfig
from rlcore.types import Trajectories


def answering(answer: Any) -> type:
    class Made:
        def reset(self, row: Any, *, seed: int) -> str:
            return "go"

        def step(self, turn: Turn) -> Any:
            return answer

    return Made


@pytest.mark.parametrize("name", ["done", "truncated"])
def test_an_end_is_a_truth_value_of_any_library_and_a_text_is_none(name: str) -> None:
    for value in (True, np.bool_(True), torch.tensor(True), 1):
        assert play(answering({name: value}), ["x"]).numbers[f"episode/{name}"] == [1.0]
    for value in ("false", None, 2, [True]):
        batch = play(answering({"messages": "on", name: value}), ["x"])
        assert f"step returned {name} = " in batch.failures[0]
        assert "which is not True or False" in batch.failures[0]


def test_rewards_are_numbers_of_any_library() -> None:
    for reward in (np.float32(0.5), torch.tensor(0.5), np.array(0.5)):
        batch = play(answering(Step(done=True, reward=reward)), ["x"])
        assert (float(batch["rewards"].sum()), batch.failures) == (0.5, [""])
    for reward in (torch.tensor([0.5]), "0.5", None):
        assert "which is not a number" in play(answering(Step(done=True, reward=reward)), ["x"]).failures[0]


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


class Doors:
    """The first letter of a turn decides: w wins a named reward, a goes on, and f fails."""

    def reset(self, row: Any, *, seed: int) -> str:
        return "go"

    def step(self, turn: Turn) -> Step:
        if turn.text[:1] == "f":
            raise OSError("away")
        if turn.text[:1] == "w":
            return Step(reward={"won": 1.0}, done=True)
        return Step("on")


def test_what_did_not_happen_in_an_episode_counts_as_zero_unless_it_failed() -> None:
    batch = play(Doors, ["w"], ["a", "b"], ["f"], max_turns=2)
    assert batch.numbers["environment/won"] == [1.0, 0.0, None]
    ends = {name: values for name, values in batch.numbers.items() if "turns" not in name or "max" in name}
    ends.pop("environment/won")
    assert ends == {
        "episode/done": [1.0, 0.0, 0.0], "episode/truncated": [0.0] * 3, "episode/max_turns": [0.0, 1.0, 0.0],
        "episode/max_new_tokens": [0.0] * 3, "episode/context": [0.0] * 3, "episode/failed": [0.0, 0.0, 1.0],
    }  # fmt: skip


def test_episodes_of_one_sampler_have_the_same_metrics_in_every_batch() -> None:
    policy, player = make_policy(chat=True), make_player(Doors, data={"episodes": {"max_turns": 1}})
    prompts, gen = read_prompts(player, policy, ["a", "b"]), SamplingConfig(max_new_tokens=8)
    sampler: Any = player.sampler(Scripted(["w"], ["a"]))  # type: ignore[arg-type]
    first, then = (sampler(policy, [prompts[row]], gen, row_seeds=[row]) for row in range(2))
    assert list(first.numbers) == list(then.numbers)
    assert then.numbers["environment/won"] == [0.0]


def test_calls_are_counted_in_every_episode_that_has_tools() -> None:
    class Calls(Doors):
        tools = ({"type": "function", "function": {"name": "add"}},)

    assert play(Calls, ["x"], ["f"], max_turns=1).numbers["episode/tool_calls"] == [0.0, 0.0]
    assert "episode/tool_calls" not in play(Doors, ["x"], max_turns=1).numbers


def test_the_columns_of_a_share_do_not_depend_on_which_of_its_episodes_live() -> None:
    """Processes exchange shares, of which one may be empty, or may consist of episodes that failed at once."""

    class Closed(Doors):
        def reset(self, row: Any, *, seed: int) -> str:
            if row.get("door") == reading[0]:
                raise OSError("away")
            return "go"

    reading = [""]
    policy, player = make_policy(chat=True), make_player(Closed, data={"episodes": {"max_failed": 1.0}})
    prompts = read_prompts(player, policy, [{"prompt": "a", "door": "x"}, {"prompt": "b", "door": "y"}])
    reading[0] = "x"
    sampler: Any = player.sampler(Scripted(["w"], ["w"]))  # type: ignore[arg-type]
    gen = SamplingConfig(max_new_tokens=8)
    shares: list[list[int]] = [[0], [1], []]
    failed, whole, nothing = (sampler(policy, [prompts[i] for i in rows], gen, row_seeds=rows) for rows in shares)
    assert failed.failures[0]
    assert whole.failures == [""]
    assert set(failed.columns) == set(whole.columns) == set(nothing.columns) == {"logprobs", "rewards"}
    together = Trajectories.concat([nothing.plain, failed.plain, whole.plain])
    assert together["rewards"].sum(1).tolist() == [0.0, 1.0]
