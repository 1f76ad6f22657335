"""The environment `textarena`: one game of TextArena for each episode, with random state of its own."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

from rlcore.protocols import Step, Turn
from rlcore_environments.adapter import WHERE, SeedFactory, function_of
from rlcore_textarena.config import TextArenaConfig
from rlcore_textarena.games import OwnRandom, begin_game, check_game

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
