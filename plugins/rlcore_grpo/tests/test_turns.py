"""Advantages of turns, on arrays worked out by hand."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

import pytest
import torch
from grpo_making import make

from rlcore.errors import ConfigError
from rlcore_grpo.advantages import (
    EPSILON,
    Scores,
    compare,
    compare_turns,
    lone_fraction,
    returns_to_go,
    to_tokens,
    to_turns,
    turn_of,
)
from rlcore_grpo.config import GRPOConfig
from rlcore_grpo.constraints import check

# Three episodes of one group: p is a token of the prompt or of the environment, digits are turns, - is padding.
ROWS = ("p00p1p22", "pp0p11--", "p0p-----")
REWARDS = [[0, 0, 1, 0, 0, 0, 0, 2], [0, 0, 1, 0, 3, 1, 0, 0], [0, 9, 0, 0, 0, 0, 0, 0]]
MASK = torch.tensor([[letter.isdigit() for letter in row] for row in ROWS])


def returns(discount: float = 0.5) -> Scores:
    """Return the returns to go of the three episodes, the last of which failed: 1.5, 1, 2; 3, 4."""
    sums, is_turn = to_turns(torch.tensor(REWARDS, dtype=torch.float64), MASK)
    assert sums.tolist() == [[1, 0, 2], [1, 4, 0], [9, 0, 0]]
    assert is_turn.tolist() == [[True] * 3, [True, True, False], [True, False, False]]
    has_score = torch.tensor([[True], [True], [False]])
    return Scores.of(returns_to_go(sums, discount=discount), is_turn & has_score)


def test_a_turn_is_a_run_of_chosen_tokens() -> None:
    expected = [[int(letter) if letter.isdigit() else -1 for letter in row] for row in ROWS]
    assert turn_of(MASK).tolist() == expected


def test_what_follows_a_turn_counts_less_with_each_turn() -> None:
    assert returns().values.tolist() == [[1.5, 1, 2], [3, 4, 0], [0, 0, 0]]
    assert returns(1.0).values.tolist() == [[3, 2, 2], [5, 4, 0], [0, 0, 0]]
    assert returns(0.0).values.tolist() == [[1, 0, 2], [1, 4, 0], [0, 0, 0]]


@pytest.mark.parametrize(
    ("options", "first", "second"),
    [
        ({"baseline": "mean", "scale": "none"}, 0.75, 1.5),
        ({"baseline": "loo", "scale": "none"}, 1.5, 3.0),
        (
            {"baseline": "mean", "scale": "group"},
            0.75 / (statistics.stdev([1.5, 3]) + EPSILON),
            1.5 / (statistics.stdev([1, 4]) + EPSILON),
        ),
        (
            {"baseline": "mean", "scale": "batch"},
            0.75 / (statistics.stdev([1.5, 1, 2, 3, 4]) + EPSILON),
            1.5 / (statistics.stdev([1.5, 1, 2, 3, 4]) + EPSILON),
        ),
    ],
)
def test_a_turn_is_compared_with_the_same_turn_of_the_others(options: Any, first: float, second: float) -> None:
    """The third turn has nothing to be compared with, and the failed episode is no part of any baseline."""
    groups = compare_turns(returns(), 3, **options)
    assert groups.advantages.tolist() == [
        pytest.approx([-first, -second, 0.0]), pytest.approx([first, second, 0.0]), [0.0, 0.0, 0.0],
    ]  # fmt: skip
    assert groups.has_spread.tolist() == [True]
    tokens = to_tokens(groups.advantages, MASK)
    assert tokens[0].tolist() == pytest.approx([0, -first, -first, 0, -second, 0, 0, 0])
    assert tokens[1].tolist() == pytest.approx([0, 0, first, 0, second, second, 0, 0])
    assert not tokens[2].any()


def test_the_share_of_turns_without_another_is_known() -> None:
    assert lone_fraction(returns().known, 3) == 1 / 5


def test_a_group_has_spread_if_one_of_its_turns_has() -> None:
    """The first two episodes have equal sums, but earned them in other turns; the next two are equal."""
    rewards = torch.tensor([[1.0, 2.0], [2.0, 1.0], [4.0, 1.0], [4.0, 1.0]], dtype=torch.float64)
    known = torch.ones(4, 2, dtype=torch.bool)
    groups = compare_turns(
        Scores(returns_to_go(rewards, discount=1.0), known), 2, baseline="mean", scale="none"
    )  # fmt: skip
    assert groups.has_spread.tolist() == [True, False]
    assert groups.advantages.tolist() == [[0.0, 0.5], [0.0, -0.5], [0.0, 0.0], [0.0, 0.0]]


@pytest.mark.parametrize("baseline", ["mean", "loo"])
@pytest.mark.parametrize("scale", ["group", "batch", "none"])
def test_episodes_of_one_turn_have_the_advantages_of_whole_episodes(baseline: str, scale: str) -> None:
    values, known = (
        torch.tensor([1.0, 4.0, 2.0, 7.0, 7.0, 0.5], dtype=torch.float64),
        torch.tensor([True] * 5 + [False]),
    )
    whole = compare(Scores.of(values, known), 3, baseline=baseline, scale=scale)
    turns = compare_turns(Scores.of(values[:, None], known[:, None]), 3, baseline=baseline, scale=scale)
    assert turns.advantages[:, 0].tolist() == pytest.approx(whole.advantages.tolist(), abs=1e-12)
    assert turns.has_spread.tolist() == whole.has_spread.tolist()


def test_a_reward_at_the_end_alone_gives_each_turn_the_advantage_of_its_episode() -> None:
    rewards = torch.zeros(3, 4, dtype=torch.float64)
    rewards[:, 3] = torch.tensor([1.0, 0.0, 1.0])
    known = torch.ones(3, 4, dtype=torch.bool)
    turns = compare_turns(Scores(returns_to_go(rewards, discount=1.0), known), 3, baseline="mean", scale="group")
    whole = compare(Scores(rewards[:, 3], known[:, 0]), 3, baseline="mean", scale="group")
    assert turns.advantages.tolist() == [[each] * 4 for each in whole.advantages.tolist()]


def test_no_episode_has_no_turns() -> None:
    sums, is_turn = to_turns(torch.zeros(0, 5), torch.zeros(0, 5, dtype=torch.bool))
    assert (sums.shape, is_turn.shape) == ((0, 1), (0, 1))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"combine": "normalize_then_sum"}, r"trainer\.combine = 'normalize_then_sum': with trainer\.credit = 'turn'"),
        ({"level": "sequence"}, r"trainer\.level = 'sequence': .* one ratio for a whole episode mixes its turns"),
        ({"kl_coef": 0.1, "kl_in": "reward"}, r"trainer\.kl_in = 'reward': .* set it to loss, or set trainer\.credit"),
        (
            {"credit": "episode", "turn_discount": 0.5},
            r"trainer\.turn_discount = 0\.5: turns have no advantages of their own; set trainer\.credit to turn",
        ),
    ],
)
def test_options_that_turns_do_not_have_are_refused(options: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check(GRPOConfig(**{"credit": "turn", **options}), 1)


def test_a_run_without_episodes_has_no_turns_to_credit(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"trainer\.credit = 'turn': .*one turn; set data\.environment"):
        make(tmp_path, credit="turn")
