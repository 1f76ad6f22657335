"""The reward `environment`: what the environment of a run gave, one number for each chosen token."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class EnvironmentReward:
    """Returns the rewards that the environment gave, each at the last token of its turn.

    A run with `data.environment` uses it without being told; name it in `data.reward_fn` to change its weight.
    """

    def __call__(self, environment_rewards: Sequence[list[float]]) -> list[list[float]]:
        """Return the rewards of B episodes."""
        return list(environment_rewards)

    def open(self, run: Any) -> None:
        """Let the sampler of episodes follow the run."""
        if (follow := getattr(run.sampling.sampler, "follow", None)) is not None:
            follow(run)

    @staticmethod
    def example_outputs() -> dict[str, list[float]]:
        """Return what the laws of rewards pass in place of texts: twelve episodes with one reward each."""
        return {"environment_rewards": [k / 4 for k in range(12)]}


environment_reward = EnvironmentReward()
