"""The environment `textarena`: one game of TextArena for each episode, with random state of its own.

Also in this file: games of TextArena, checked when a run begins, and random state of its own for each of them.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np
import textarena
from textarena.envs.registration import ENV_REGISTRY

from rlcore.components import describe_error
from rlcore.errors import ConfigError
from rlcore.protocols import Step, Turn
from rlcore_environments.openings import WHERE, SeedFactory, function_of, near_names
from rlcore_environments.textarena.config import TextArenaConfig

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


def begin_game(config: TextArenaConfig, seed: int) -> object:
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


MOST_MOVES = 10_000
"""Turns of the other players between two of the policy, after which the game counts as stuck."""
MOST_IN_A_ROW = 100
"""Turns of one other player after another, after which the game counts as stuck."""


class ArenaGame:
    """One episode (`rlcore.protocols.Environment`).

    Args:
        factory: the factory that made it.
    """

    def __init__(self, factory: TextArena) -> None:
        self._factory, self._seat = factory, factory.config.seat
        self._game: Any = None

    def reset(self, row: Mapping[str, Any], *, seed: int) -> str:  # noqa: ARG002  the seed is all
        """Return the rules and what happened before the policy's first turn."""
        self._random, self._others = OwnRandom(seed), random.Random(seed)  # noqa: S311  no secret
        with self._random():
            self._game = begin_game(self._factory.config, seed)
        over, text = self._until_my_turn()
        if over:
            raise RuntimeError("the game was over before the policy's first turn")
        return text

    def step(self, turn: Turn) -> Step:
        """Make a move, let the other players make theirs, and return what happened; the reward comes at the end."""
        over, text = (True, "") if self._move(turn.text) else self._until_my_turn()
        if not over:
            return Step(text)
        with self._random():
            rewards, infos = self._game.close()
        if not rewards or self._seat not in rewards:
            raise RuntimeError(f"the game ended without a reward for player {self._seat}: {rewards!r}")
        reward, info = float(rewards[self._seat]), infos[self._seat]
        success = reward >= self._factory.config.success_reward
        found = {"success": success, "invalid_move": float(info.get("invalid_move", False))}
        return Step(str(info.get("reason") or "The game is over."), reward, done=True, info=found)

    def _move(self, text: str) -> bool:
        with self._random():
            over, _ = self._game.step(text)
        return bool(over)

    def _until_my_turn(self) -> tuple[bool, str]:
        """Let the others move; return whether the game is over, and what the policy reads."""
        last, in_a_row, move = self._seat, 0, ""
        for _ in range(MOST_MOVES):
            with self._random():
                player, seen = self._game.get_observation()
                roles = self._game.state.role_mapping
            lines = [
                message if sender < 0 else f"[{roles.get(sender, f'Player {sender}')}] {message}"
                for sender, message, _ in seen
                if sender != player
            ]
            if player == self._seat:
                if player in getattr(self._game.state, "elimination_order", ()):
                    raise RuntimeError(f"the game asks player {player}, whom it has eliminated, and so gives no reward")
                return False, "\n".join(lines)
            last, in_a_row = player, in_a_row + 1 if player == last else 1
            if in_a_row > MOST_IN_A_ROW:
                raise RuntimeError(
                    f"the game is stuck: player {player} had {MOST_IN_A_ROW} turns in a row; some games go on asking a "
                    f"player whose moves are invalid (its last move: {move!r:.80})"
                )
            move = self._factory.opponent("\n".join(lines), self._others)
            if not isinstance(move, str):
                raise TypeError(f"{WHERE}.opponent returned {move!r:.80} ({type(move).__name__}), not a text")
            if self._move(move):
                return True, ""
        raise RuntimeError(f"player {self._seat} had no turn among {MOST_MOVES} moves of the others")


class TextArena(SeedFactory):
    """A factory of episodes with a game of TextArena.

    Args:
        config: its options.

    Raises:
        ConfigError: TextArena has no such game, or cannot begin it with these options.
    """

    episode = ArenaGame

    def __init__(self, config: TextArenaConfig) -> None:
        super().__init__(config)
        self.max_turns = config.max_turns
        check_game(config)
        self.opponent: Any = function_of(config.opponent, f"{WHERE}.opponent")
