"""Games of TextArena: checked when a run begins, and begun for each episode."""

from __future__ import annotations

import difflib
from typing import Any

import textarena
from textarena.envs.registration import ENV_REGISTRY

from rlcore.components import describe_error
from rlcore.errors import ConfigError
from rlcore_textarena.config import TextArenaConfig
from rlcore_textarena.own_random import OwnRandom


def begin_game(config: TextArenaConfig, seed: int) -> Any:
    """Return a game that has been reset. Its observations are those since the player's last turn.

    The observation wrappers of a game repeat the whole history in each observation, and are therefore left out.
    """
    game = textarena.make(config.id, **config.options)
    while isinstance(game, textarena.Wrapper):
        game = game.env
    for wrapper in ENV_REGISTRY[config.id].default_wrappers or ():
        if issubclass(wrapper, textarena.ActionWrapper):
            game = wrapper(game)
    game.reset(num_players=config.players, seed=seed)
    return game


def check_game(config: TextArenaConfig, where: str) -> None:
    """Begin a game once.

    Args:
        config: names the game.
        where: path of the section, for messages.

    Raises:
        ConfigError: TextArena has no such game, or cannot begin it with these options.
    """
    if config.id not in ENV_REGISTRY:
        near = difflib.get_close_matches(config.id, ENV_REGISTRY, n=3)
        hint = f"; did you mean {' or '.join(map(repr, near))}?" if near else ""
        raise ConfigError(f"{where}.id = {config.id!r}: TextArena has no such game{hint}")
    try:
        with OwnRandom(0)():
            begin_game(config, 0)
    except Exception as error:  # a game's own code may raise anything
        raise ConfigError(
            f"{where}: the game {config.id!r} cannot begin with players = {config.players} and options = "
            f"{dict(config.options)}: {describe_error(error)}"
        ) from error
