"""Tests of the rewards length and repetition."""

from __future__ import annotations

from typing import Any

import pytest

from rlcore.errors import ConfigError, RewardError
from rlcore_rewards.config import LengthConfig, RepetitionConfig
from rlcore_rewards.text_rewards import Length, Repetition


@pytest.mark.parametrize(
    ("options", "rewards"),
    [  # of outputs with 0, 2, 4, 6 and 8 characters
        ({"cap": 4}, [0, 0, 0, -1, -1]),
        ({"cap": 4, "slack": 4}, [0, 0, 0, -0.5, -1]),
        ({"cap": 2, "slack": 8}, [0, 0, -0.25, -0.5, -0.75]),
        ({"cap": 0, "slack": 4}, [0, -0.5, -1, -1, -1]),
        ({"target": 4}, [0, 0, 1, 0, 0]),
        ({"target": 4, "slack": 4}, [0, 0.5, 1, 0.5, 0]),
    ],
)
def test_length_has_a_limit_or_a_target(options: dict[str, Any], rewards: list[float]) -> None:
    outputs = ["x" * k for k in (0, 2, 4, 6, 8)]
    assert Length(LengthConfig(unit="characters", **options))(outputs) == rewards


def test_length_counts_tokens_characters_or_words() -> None:
    outputs, tokens = ["two words"], [[5, 6, 0]]
    for unit, count in (("tokens", 3), ("characters", 9), ("words", 2)):
        assert Length(LengthConfig(unit=unit, target=count))(outputs, tokens) == [1.0]


def test_length_needs_a_limit_or_a_target_and_tokens() -> None:
    for options in ({}, {"cap": 1, "target": 1}):
        with pytest.raises(ConfigError, match=r"length\.cap = .*, length\.target = .*: set one of them"):
            Length(LengthConfig(**options))
    with pytest.raises(RewardError, match=r"length\.unit = 'tokens': these outputs come without tokens"):
        Length(LengthConfig(cap=1))(["a"])


@pytest.mark.parametrize(
    ("options", "output", "reward"),
    [
        ({"n": 1}, "a b c", 0.0),
        ({"n": 1}, "a a a a", -0.75),  # 4 unigrams, 1 different
        ({"n": 2}, "a b a b a", -0.5),  # ab ba ab ba: 4 bigrams, 2 different
        ({"n": 2, "free": 0.25}, "a b a b a", -1 / 3),  # (.5 - .25) / .75
        ({"n": 2, "free": 0.5}, "a b a b a", 0.0),
        ({"n": 3}, "a a", 0.0),
        ({"n": 1}, "", 0.0),
        ({"n": 1}, "A a", -0.5),
        ({"n": 1, "ignore_case": False}, "A a", 0.0),
        ({"n": 2, "unit": "characters"}, "aaaaa", -0.75),
    ],
)
def test_repetition_is_the_share_of_repeated_ngrams(options: dict[str, Any], output: str, reward: float) -> None:
    assert Repetition(RepetitionConfig(**options))([output]) == [pytest.approx(reward)]


def test_repetition_counts_tokens_too() -> None:
    assert Repetition(RepetitionConfig(n=1, unit="tokens"))(["x", "y"], [[1, 1], [1, 2]]) == [-0.5, 0.0]
