"""Registration of the loop of episodes and of the reward `environment`; light."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rlcore import hookimpl
from rlcore.hookspecs import Register

if TYPE_CHECKING:
    from rlcore.protocols import EpisodePlayer
    from rlcore.settings import TrainConfig


@hookimpl
def register_rewards(register: Register) -> None:
    """Register the reward that a run with an environment uses."""
    register(
        "environment",
        "rlcore_environments.reward:environment_reward",
        summary="what the environment of the run gave, turn by turn",
    )


@hookimpl
def register_environments(register: Register) -> None:
    """Register Python functions as tools."""
    register(
        "tools",
        "rlcore_environments.tools:Tools",
        config="rlcore_environments.options:ToolOptions",
        summary="Python functions that the policy may call; an episode ends with a turn that calls none",
    )


@hookimpl
def play_environment(environment: Any, config: TrainConfig) -> EpisodePlayer:
    """Return the player of an environment."""
    from rlcore_environments.player import Player

    return Player(environment, config)
