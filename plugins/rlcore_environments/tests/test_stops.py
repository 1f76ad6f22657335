"""Stop strings of a turn, and rewards whose names occur late."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import attrs
import pytest
from env_games import Echo, Scripted, make_player, make_policy, play, read_prompts

from rlcore.errors import ConfigError
from rlcore.protocols import Step, Turn
from rlcore.ranks import Ranks
from rlcore.settings import SamplingConfig
from rlcore_transformers.sampling.sampler import sample

GEN = SamplingConfig(max_new_tokens=6)


class Stops(Echo):
    """After the first turn, the next one ends at a letter; the turn after that at none."""

    stop: Any = ("a", "b")

    def step(self, turn: Turn) -> Step:
        return Step("on", done=turn.index == 2, stop=self.stop if turn.index == 0 else ())


def test_the_strings_of_a_step_end_the_next_turn_alone() -> None:
    seen: list[tuple[str, ...]] = []

    def watched(policy: Any, prompts: Any, sampling: Any, *, generator: Any = None, row_seeds: Any = None) -> Any:
        seen.append(sampling.stop_sequences)
        return sample(policy, prompts, sampling, generator=generator, row_seeds=row_seeds)

    policy, player = make_policy("llama", chat=True), make_player(Stops)
    prompts = read_prompts(player, policy, [*"abcdefgh"])
    gen = SamplingConfig(max_new_tokens=12, stop_sequences=["z"])
    batch: Any = player.sampler(watched)(policy, prompts, gen, row_seeds=range(8))  # type: ignore[arg-type]
    assert seen == [("z",), ("z", "a", "b"), ("z",)]
    turns = batch.arguments["turns"]
    assert all(not set("abz") & set(second) for _, second, _ in turns)
    assert any(set("ab") & set(first + third) for first, _, third in turns)


def test_episodes_with_other_strings_are_sampled_apart() -> None:
    class Each(Stops):
        def reset(self, row: Any, *, seed: int) -> str:
            self.stop = row["letter"]
            return "go"

    policy, player = make_policy("llama", chat=True), make_player(Each)
    rows = [{"prompt": "ab", "letter": letter} for letter in "aeia"]
    prompts = read_prompts(player, policy, rows)
    gen = SamplingConfig(max_new_tokens=12)
    batch: Any = player.sampler(sample)(policy, prompts, gen, row_seeds=range(4))
    for row, turns in zip(rows, batch.arguments["turns"], strict=True):
        assert row["letter"] not in turns[1]
    alone: Any = player.sampler(sample)(policy, prompts[1:2], gen, row_seeds=[1])
    assert alone.arguments["turns"][0] == batch.arguments["turns"][1]


@pytest.mark.parametrize("stop", [3, [""], ["a", 3]])
def test_stop_strings_of_another_form_fail_their_episode(stop: Any) -> None:
    made = type("Stops", (Stops,), {"stop": stop})
    batch = play(made, ["a", "b", "c"], max_failed=1.0)
    assert "step returned stop = " in batch.failures[0]
    assert "give texts that are not empty, such as ['\\n']" in batch.failures[0]


class Wins:
    """The first letter of a turn decides: w wins a named reward, f fails."""

    def reset(self, row: Any, *, seed: int) -> str:
        return "go"

    def step(self, turn: Turn) -> Step:
        if turn.text[:1] == "f":
            raise OSError("away")
        return Step(reward={"won": 1.0} if turn.text[:1] == "w" else 0.0, done=True)


def sampled(sampler: Any, policy: Any, prompts: Any, rows: list[int]) -> Any:
    return sampler(policy, [prompts[row] for row in rows], GEN, row_seeds=rows)


def test_a_named_reward_that_occurs_late_is_a_metric_of_all_episodes_of_the_round() -> None:
    policy, player = make_policy(chat=True), make_player(Wins, data={"episodes": {"max_failed": 1.0}})
    prompts = read_prompts(player, policy, ["a", "b", "c"])
    sampler: Any = player.sampler(Scripted(["a"], ["f"], ["w"]))  # type: ignore[arg-type]
    first, then = sampled(sampler, policy, prompts, [0, 1]), sampled(sampler, policy, prompts, [2])
    assert "environment/won" not in first.numbers
    sampler.check_round(Ranks(None))
    assert first.numbers["environment/won"] == [0.0, None]
    assert then.numbers["environment/won"] == [1.0]


def test_a_reward_that_another_process_gave_is_a_metric_here_too() -> None:
    policy, player = make_policy(chat=True), make_player(Wins)
    prompts = read_prompts(player, policy, ["a"])
    sampler: Any = player.sampler(Scripted(["a"]))  # type: ignore[arg-type]
    batch = sampled(sampler, policy, prompts, [0])

    class Both(Ranks):
        """Ranks of which the other one has given a reward in its first exchange."""

        others: list[list[Any]] = [["environment/won"], [1], []]  # noqa: RUF012  metrics, episodes, failures

        def gather(self, values: list[Any]) -> list[Any]:
            return values + self.others.pop(0)

    sampler.check_round(Both(None))
    assert batch.numbers["environment/won"] == [0.0]


def test_rewards_that_an_environment_declares_are_metrics_from_the_first_episode() -> None:
    made = type("Wins", (Wins,), {"reward_names": ["won", "drawn"]})
    batch = play(made, ["a"])
    assert (batch.numbers["environment/won"], batch.numbers["environment/drawn"]) == ([0.0], [0.0])
    with pytest.raises(ConfigError, match=r"reward_names = 'won': must be a list of names"):
        make_player(type("Wins", (Wins,), {"reward_names": "won"}))


class States(Wins):
    """Only wins state a success; that of wx is False."""

    def step(self, turn: Turn) -> Step:
        step = super().step(turn)
        return attrs.evolve(step, info={"success": "x" not in turn.text}) if turn.text[:1] == "w" else step


def test_an_episode_that_does_not_state_its_success_counts_as_none_once_another_states_it() -> None:
    assert "episode/success" not in play(States, ["a"]).numbers
    batch = play(States, ["w"], ["a"], ["f"], ["wx"], max_failed=1.0)
    assert batch.numbers["episode/success"] == [1.0, 0.0, None, 0.0]
    policy, player = make_policy(chat=True), make_player(States, data={"episodes": {"max_failed": 1.0}})
    prompts = read_prompts(player, policy, ["a", "b", "c", "d"])
    sampler: Any = player.sampler(Scripted(["a"], ["f"], ["w"], ["a"]))  # type: ignore[arg-type]
    first, then = sampled(sampler, policy, prompts, [0, 1]), sampled(sampler, policy, prompts, [2])
    assert "episode/success" not in first.numbers
    sampler.check_round(Ranks(None))
    assert first.numbers["episode/success"] == [0.0, None]
    assert then.numbers["episode/success"] == [1.0]
    assert sampled(sampler, policy, prompts, [3]).numbers["episode/success"] == [0.0]  # a later round without a win


def test_a_success_that_was_stated_before_a_run_was_resumed_is_a_metric_of_its_next_round() -> None:
    policy, player = make_policy(chat=True), make_player(States)
    prompts = read_prompts(player, policy, ["a"])
    sampler: Any = player.sampler(Scripted(["a"]))  # type: ignore[arg-type]
    sampler.open(SimpleNamespace(metrics={"episode/success": 0.25}))
    batch = sampled(sampler, policy, prompts, [0])
    sampler.check_round(Ranks(None))
    assert batch.numbers["episode/success"] == [0.0]
