"""Tests of the reward regex."""

from __future__ import annotations

from typing import Any

import pytest

from rlcore.errors import ConfigError
from rlcore_rewards.config import RegexConfig
from rlcore_rewards.text_rewards import Regex


@pytest.mark.parametrize(
    ("options", "output", "reward"),
    [
        ({"pattern": r"\d+"}, "a 12", 1.0),
        ({"pattern": r"\d+", "mode": "fullmatch"}, "a 12", 0.0),
        ({"pattern": r"\d+", "mode": "fullmatch"}, "12", 1.0),
        ({"pattern": r"\d+", "mode": "absent"}, "a 12", 0.0),
        ({"pattern": r"\d+", "mode": "absent"}, "a", 1.0),
        ({"pattern": "b", "mode": "count", "most": 4}, "abb", 0.5),
        ({"pattern": "b", "mode": "count", "most": 2}, "bbbbb", 1.0),
        ({"pattern": "B"}, "b", 0.0),
        ({"pattern": "B", "ignore_case": True}, "b", 1.0),
        ({"pattern": "^b$"}, "a\nb\nc", 0.0),
        ({"pattern": "^b$", "multiline": True}, "a\nb\nc", 1.0),
        ({"pattern": "a.b"}, "a\nb", 0.0),
        ({"pattern": "a.b", "dot_all": True}, "a\nb", 1.0),
        ({"pattern": "a", "after": "|"}, "a|b", 0.0),
    ],
)
def test_regex_searches(options: dict[str, Any], output: str, reward: float) -> None:
    assert Regex(RegexConfig(**options))([output]) == [reward]


def test_a_search_that_takes_too_long_gives_no_reward_and_is_counted(caplog: Any, capsys: Any) -> None:
    reward = Regex(RegexConfig(pattern=r"(a|aa|b?)+$", mode="fullmatch", timeout_s=0.05))
    assert reward(["a" * 60 + "!"]) == [None]
    assert reward._tally.counts == {"searches took longer than regex.timeout_s = 0.05, and gave no reward": 1}


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("", "regex.pattern is empty: set a regular expression"),
        ("(", r"regex.pattern = '(': is no regular expression: missing ) at position 1"),
        ("(?iau)x", "is no regular expression: ASCII, LOCALE and UNICODE flags are mutually incompatible"),
        ("(" * 3000 + ")" * 3000, "is no regular expression: maximum recursion depth exceeded"),
    ],
)
def test_an_invalid_pattern_is_named(pattern: str, message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        Regex(RegexConfig(pattern=pattern))
    assert str(raised.value).startswith("regex.pattern ")
    assert message in str(raised.value)
