"""Registration of the loop of episodes and of the reward `environment`; light."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from rlcore import hookimpl
from rlcore.hookspecs import Register, RegisterServices, Services

if TYPE_CHECKING:
    from rlcore.protocols import Decoder, DecoderRequest, EpisodePlayer
    from rlcore.settings import TrainConfig


@hookimpl
def register_rewards(register: Register) -> None:
    """Register the reward that a run with an environment uses."""
    register(
        "environment",
        "rlcore_environments.recorded:environment_reward",
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
def register_pipelines(register: Register) -> None:
    """Register recorded episodes as demonstrations."""
    register(
        "episodes",
        "rlcore_environments.recorded:build_episodes",
        summary="tokenise episodes that a run has recorded; the policy's turns are chosen",
    )


@hookimpl
def register_services(register: RegisterServices) -> None:
    """Register the player of episodes, and a decoder that keeps keys and values from turn to turn meanwhile."""
    register(Services(episode_player=_open_player), options=["data.environment"], order="last")
    register(Services(decoder=_make_decoder), order="first")


def _open_player(environment: object, config: TrainConfig) -> EpisodePlayer:
    from rlcore_environments.player import Player

    return Player(environment, config)


def _make_decoder(request: DecoderRequest) -> Decoder | None:
    kept = sys.modules.get("rlcore_environments.kept_states")  # which the loop of episodes imports
    return None if kept is None else kept.turn_decoder(request)
