"""Tests of rewards registered by a plugin: found by name, and built from their options."""

from __future__ import annotations

import types

import pytest
from reward_asking import ask, by_output

from rlcore.components import Component
from rlcore.config import config, option
from rlcore.errors import ConfigError, PluginError, UnknownReward
from rlcore.plugins import registry
from rlcore.rewards import chosen_rewards
from rlcore.rewards.combine import Rewards


@config
class LengthConfig:
    """Options of a length reward."""

    per: float = option(1.0, "characters that are worth 1", gt=0)


@config
class ClashingConfig:
    """Options whose field no mapping can set."""

    weight: float = option(1.0, "what every reward has")


def make_lengths(config):
    return lambda outputs: [len(output) / config.per for output in outputs]


@pytest.fixture
def registered(monkeypatch):
    """Register rewards of a dist called acme: one without options, one with options, one with conflicting options."""
    rewards = [
        Component("rewards", "length", "acme", "0.1", "", by_output, None),
        Component("rewards", "scaled", "acme", "0.1", "", make_lengths, LengthConfig),
        Component("rewards", "clashing", "acme", "0.1", "", make_lengths, ClashingConfig),
    ]
    found = types.SimpleNamespace(rewards=registry.Registry("rewards", rewards, []))
    monkeypatch.setattr(chosen_rewards, "registries", lambda: found)


@pytest.mark.usefixtures("registered")
def test_a_registered_reward_is_found_by_its_short_and_its_full_name():
    for name in ("length", "acme:length"):
        assert Rewards.build(name).names == (name,)
        assert ask([name, {"fn": name, "weight": 2}]).totals == [3, 6, 0]


@pytest.mark.usefixtures("registered")
@pytest.mark.parametrize(
    ("reward_fn", "name", "totals"),
    [
        ("scaled", "scaled", [1, 2, 0]),
        ({"fn": "scaled", "per": 0.5}, "scaled", [2, 4, 0]),
        ([{"fn": "acme:scaled", "weight": 3, "per": 2.0}], "acme:scaled", [1.5, 3, 0]),
        ({"half": {"fn": "scaled", "per": 2.0}}, "half", [0.5, 1, 0]),
        ([{"fn": "scaled", "name": "long", "per": 0.25}], "long", [4, 8, 0]),
        (("scaled", 2), "scaled", [2, 4, 0]),
        ({"name": "scaled", "per": 0.5}, "scaled", [2, 4, 0]),
        ([{"name": "acme:scaled", "weight": 3, "per": 2.0}], "acme:scaled", [1.5, 3, 0]),
        ({"half": {"name": "scaled", "per": 2.0}}, "half", [0.5, 1, 0]),
        ({"name": by_output}, "name", [1, 2, 0]),
    ],
)
def test_a_registered_reward_with_options_is_what_its_target_returns_for_them(reward_fn, name, totals):
    assert Rewards.build(reward_fn).names == (name,)
    assert ask(reward_fn).totals == totals


@pytest.mark.usefixtures("registered")
@pytest.mark.parametrize(
    ("reward_fn", "error", "message"),
    [
        ({"fn": "scaled", "pre": 2.0}, ConfigError, r"reward_fn\.pre: no such option; did you mean 'per'"),
        ([{"fn": "scaled", "per": -1.0}], ConfigError, r"reward_fn\[0\]\.per = -1\.0: must be greater than 0"),
        ({"a": {"fn": "scaled", "per": "2"}}, ConfigError, r"reward_fn\.a\.per = '2'"),
        ({"fn": "length", "per": 2.0}, ConfigError, r"reward_fn\.per: 'length' has no options"),
        ("clashing", PluginError, r"reward 'clashing' \(acme 0\.1\) has an option 'weight', which cannot be set"),
    ],
)
def test_options_of_a_registered_reward_are_checked(reward_fn, error, message):
    with pytest.raises(error, match=message):
        Rewards.build(reward_fn)


def test_an_unknown_registered_reward_is_named():
    with pytest.raises(UnknownReward, match="no reward is called 'kindness'"):
        Rewards.build("kindness")
