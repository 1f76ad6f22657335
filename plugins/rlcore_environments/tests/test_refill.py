"""Failed episodes are replaced by new ones to the same prompt, as often as the run allows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from env_games import Echo, Scripted, make_player, make_policy, read_prompts
from test_groups import Failing, groups_of, is_failed, train

from rlcore.ranks import Ranks
from rlcore.sampling import derive_seeds
from rlcore.settings import SamplingConfig
from rlcore_environments.sampler import REFILL, EpisodesFailed

GEN = SamplingConfig(max_new_tokens=8)


class Fragile(Echo):
    """It fails at a turn that begins with f."""

    def step(self, turn: Any) -> Any:
        if turn.text[:1] == "f":
            raise OSError("away")
        return super().step(turn)


class Replaced(Scripted):
    """Scripted episodes; the k-th replacement of episode i has the script `[i][k + 1]`."""

    def __init__(self, *scripts: Any) -> None:
        super().__init__(*(script for episode in scripts for script in episode))
        self.seeds = [
            i if k == 0 else derive_seeds(i, [REFILL + k - 1])[0]
            for i, episode in enumerate(scripts) for k in range(len(episode))
        ]  # fmt: skip

    def _place(self, seed: int) -> tuple[int, int]:
        from rlcore_environments.play import turn_seed

        return next(
            (row, turn) for row, first in enumerate(self.seeds) for turn in range(len(self.script[row]))
            if turn_seed(first, turn) == seed
        )  # fmt: skip


def sampler_of(sampler: Any, **episodes: Any) -> Any:
    player = make_player(Fragile, data={"episodes": episodes})
    policy = make_policy(chat=True)
    prompts = read_prompts(player, policy, ["a", "b"])
    return player.sampler(sampler), policy, prompts


def test_a_failed_episode_is_replaced_and_the_others_stay() -> None:
    script = [[["a", "b", "c"]], [["d", "f"], ["f"], ["g", "h", "i"]]]
    sampler, policy, prompts = sampler_of(Replaced(*script), refill=2)
    batch = sampler(policy, prompts, GEN, row_seeds=[0, 1])
    assert batch.failures == ["", ""]
    assert batch.arguments["turns"] == [["a", "b", "c"], ["g", "h", "i"]]
    assert batch.numbers["episode/refilled"] == [0.0, 2.0]
    assert batch.numbers["episode/failed"] == [0.0, 0.0]
    assert batch.numbers["episode/turns"] == [3.0, 3.0]


def test_replacements_end_at_their_bound_and_failures_of_all_are_counted() -> None:
    sampler, policy, prompts = sampler_of(Replaced([["a", "b", "c"]], [["f"], ["f"]]), refill=1)
    batch = sampler(policy, prompts, GEN, row_seeds=[0, 1])
    assert "the environment raised OSError: away at tests/test_refill.py:" in batch.failures[1]
    assert batch.numbers["episode/refilled"] == [0.0, 1.0]
    assert batch.numbers["episode/failed"] == [0.0, 1.0]
    with pytest.raises(EpisodesFailed, match=r"2 of 3 episodes of 'Fragile' failed, more than .*max_failed = 0\.5"):
        sampler.check_round(Ranks(None))


def test_nothing_is_replaced_by_default() -> None:
    sampler, policy, prompts = sampler_of(Replaced([["a", "b", "c"]], [["f"]]))
    batch = sampler(policy, prompts, GEN, row_seeds=[0, 1])
    assert batch.failures[1]
    assert "episode/refilled" not in batch.numbers


@pytest.mark.slow
def test_a_replacement_is_in_the_group_of_the_episode_that_failed(tmp_path: Path) -> None:
    alone = groups_of(train(tmp_path / "a", Failing, data={"episodes": {"max_failed": 1.0}}))
    rows = groups_of(train(tmp_path / "b", Failing, data={"episodes": {"max_failed": 1.0, "refill": 3}}))
    first = [key for key in alone if key[0] == 1]  # the first round, before the policy learns
    num_failed = [sum(map(is_failed, groups[key])) for groups in (alone, rows) for key in first]
    assert sum(num_failed[: len(first)]) > sum(num_failed[len(first) :])
    for key in first:
        for before, row in zip(alone[key], rows[key], strict=True):
            assert row["messages"] == before["messages"]  # the same game
            if not is_failed(before):
                assert (row["output"], row["episode/refilled"]) == (before["output"], 0.0)
            else:
                assert row["episode/refilled"] > 0
