"""Options of the environment `textarena`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from rlcore.config import config, option
from rlcore.errors import ConfigError
from rlcore_environments.options import SeedOptions


@config
class TextArenaConfig(SeedOptions):
    """Options of the environment `textarena`."""

    id: str = option(attrs.NOTHING, "id of the game, such as GuessTheNumber-v0")
    options: Mapping[str, Any] = option(attrs.Factory(dict), "arguments of `textarena.make`, such as {max_number: 8}")
    players: int = option(1, "players of the game", ge=1, le=15)
    seat: int = option(0, "number of the player that the policy is", ge=0)
    opponent: Any = option(
        None, "`module:function` that is called as opponent(observation, rng) and returns the text of another player's "
        "turn; games of several players need it",
    )  # fmt: skip
    success_reward: float = option(1.0, "an episode with at least this reward is a success")
    max_turns: int = option(0, "most turns of the policy; 0: those of `data.episodes.max_turns`", ge=0)

    def __attrs_post_init__(self) -> None:
        """Check the options against one another."""
        if self.seat >= self.players:
            raise ConfigError(f"seat = {self.seat}: must be below players = {self.players}; seats count from 0")
        if (self.opponent is None) != (self.players == 1):
            has = "needs" if self.players > 1 else "takes no"
            raise ConfigError(
                f"opponent = {self.opponent!r:.80}: a game with players = {self.players} {has} `opponent`"
            )
