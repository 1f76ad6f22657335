"""Games of TextArena, checked when a run begins, and random state of its own for each of them."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import textarena
from textarena.envs.registration import ENV_REGISTRY

from rlcore.components import describe_error
from rlcore.errors import ConfigError
from rlcore_environments.adapter import WHERE, near_names
from rlcore_textarena.config import TextArenaConfig

_LOCK = threading.RLock()
"""Held while the global generators are exchanged, by all games of this process."""


class OwnRandom:
    """The state of the global generators as one game sees them.

    Args:
        seed: of both generators.
    """

    def __init__(self, seed: int) -> None:
        self._state = random.Random(seed).getstate()  # noqa: S311  no secret
        self._numpy = np.random.RandomState(seed % 2**32).get_state()

    @contextmanager
    def __call__(self) -> Iterator[None]:
        """Give the global generators this state within a block, and their former one after it.

        One block runs at a time. Other threads that draw from the global generators meanwhile see the exchanged state.
        """
        with _LOCK:
            outer, outer_numpy = random.getstate(), np.random.get_state()  # noqa: NPY002
            random.setstate(self._state)
            np.random.set_state(self._numpy)  # noqa: NPY002
            try:
                yield
            finally:
                self._state, self._numpy = random.getstate(), np.random.get_state()  # noqa: NPY002
                random.setstate(outer)
                np.random.set_state(outer_numpy)  # noqa: NPY002


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


def check_game(config: TextArenaConfig) -> None:
    """Begin a game once.

    Raises:
        ConfigError: TextArena has no such game, or cannot begin it with these options.
    """
    if config.id not in ENV_REGISTRY:
        raise ConfigError(
            f"{WHERE}.id = {config.id!r}: TextArena has no such game{near_names(config.id, ENV_REGISTRY)}"
        )
    try:
        with OwnRandom(0)():
            begin_game(config, 0)
    except Exception as error:  # a game's own code may raise anything
        raise ConfigError(
            f"{WHERE}: the game {config.id!r} cannot begin with players = {config.players} and options = "
            f"{dict(config.options)}: {describe_error(error)}"
        ) from error
