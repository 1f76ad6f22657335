"""The rewards by their names, outside a run too."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Callable

from rlcore.config import structure
from rlcore.errors import ConfigError
from rlcore_rewards.plugin import REWARDS


def build_reward(name: str, /, **options: object) -> Callable[..., object]:
    """Build a reward function as a run does, to try it on texts.

    It is called with keyword arguments: `outputs`, the column that its options name, if it has one, and for some
    rewards `output_tokens` or `prompts`. It returns one number or None for each output. `judge` is a coroutine
    function. `math_accuracy`, `judge` and rewards that count have a method `close`.

        reward = build_reward("exact_match", ignore_case=True)
        reward(outputs=["Yes"], answer=["yes"])  # [1.0]

    Args:
        name: name of the reward, such as `regex`.
        options: its options, as in a configuration.

    Raises:
        ConfigError: the package has no such reward, or an option is unknown, of the wrong type or out of range.
        PluginError: a library that the reward needs is not installed.
    """
    if name not in REWARDS:
        near = difflib.get_close_matches(name, REWARDS, n=1)
        hint = f"did you mean '{near[0]}'? It has" if near else "it has"
        raise ConfigError(f"rlcore-rewards has no reward '{name}'; {hint} {', '.join(REWARDS)}")
    module, _, attribute = REWARDS[name][0].partition(":")
    cls = getattr(importlib.import_module(f"rlcore_rewards.{module}"), attribute)
    config = getattr(importlib.import_module("rlcore_rewards.config"), f"{attribute}Config")
    reward: Callable[..., object] = cls(structure(config, options, path=name))
    return reward
