"""Tests of the reward exact_match."""

from __future__ import annotations

from typing import Any

import pytest

from rlcore.errors import ConfigError, RewardError
from rlcore_rewards.config import ExactMatchConfig
from rlcore_rewards.text_rewards import ExactMatch


@pytest.mark.parametrize(
    ("options", "output", "answer", "reward"),
    [
        ({}, " 42\n", "42", 1.0),
        ({}, "42", 42, 1.0),  # a number of a column is compared as its text
        ({"strip": False}, " 42", "42", 0.0),
        ({}, "Paris", "paris", 0.0),
        ({"ignore_case": True}, "STRASSE", "straße", 1.0),
        ({}, "a  b", "a b", 0.0),
        ({"squeeze": True}, "a \n b", "a b", 1.0),
        ({"squeeze": True, "strip": False}, "a\t b ", "a b", 0.0),
        ({"ignore_punctuation": True}, "It's so.", "Its so", 1.0),
        ({}, "e\u0301", "\u00e9", 1.0),  # NFC
        ({"unicode": "none"}, "e\u0301", "\u00e9", 0.0),
        ({}, "\uff11", "1", 0.0),
        ({"unicode": "NFKC"}, "\uff11", "1", 1.0),
        ({"after": "</think>"}, "7</think>8", "8", 1.0),
        ({"after": "</think>"}, "8", "8", 0.0),
        ({"extract": "#### *(.+)"}, "#### 3\n#### 4\n", "4", 1.0),
        ({"extract": "#### *(.+)"}, "4", "4", 0.0),
        ({}, "b", ["a", "b"], 1.0),
        ({}, "c", ["a", "b"], 0.0),
        ({}, "x", None, None),
    ],
)
def test_exact_match_compares_after_normalisation(
    options: dict[str, Any], output: str, answer: Any, reward: float | None
) -> None:
    assert ExactMatch(ExactMatchConfig(**options))(outputs=[output], answer=[answer]) == [reward]


def test_exact_match_reads_the_column_that_its_option_names() -> None:
    reward = ExactMatch(ExactMatchConfig(column="solution"))
    assert reward(outputs=["1", "2"], solution=["1", "1"]) == [1.0, 0.0]


def test_a_row_without_a_text_gets_no_reward_and_a_mapping_is_an_error() -> None:
    reward = ExactMatch(ExactMatchConfig())
    assert reward(outputs=["x", "x"], answer=[[], ["x"]]) == [None, 1.0]
    assert reward._tally.counts == {"outputs have nothing in the column 'answer' to compare with, and get no reward": 1}
    with pytest.raises(RewardError, match=r"sample 1, column 'answer': \{'text': \['x'\]\} is no text"):
        reward(outputs=["x", "x"], answer=["x", {"text": ["x"]}])


def test_the_part_that_exact_match_compares_is_one_group() -> None:
    with pytest.raises(ConfigError, match=r"exact_match\.extract = '\(a\)\(b\)': has 2 groups; put what is compared"):
        ExactMatch(ExactMatchConfig(extract="(a)(b)"))
