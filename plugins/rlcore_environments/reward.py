"""The reward `environment`: what the environment of a run gave, one number for each chosen token."""

from __future__ import annotations

from collections.abc import Sequence


def environment_reward(environment_rewards: Sequence[list[float]]) -> list[list[float]]:
    """Return the rewards that the environment gave, each at the last token of its turn.

    A run with `data.environment` uses it without being told; name it in `data.reward_fn` to change its weight.
    """
    return list(environment_rewards)
