"""The environment `gymnasium`: one environment of Gymnasium for each episode.

Also in this file: actions of discrete spaces in the text of a turn.
"""

from __future__ import annotations

import numbers
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gymnasium
from gymnasium.spaces import Discrete, Space

from rlcore.components import describe_error
from rlcore.errors import ConfigError
from rlcore.protocols import Step, Turn
from rlcore_environments.gymnasium.config import GymnasiumConfig
from rlcore_environments.openings import WHERE, SeedFactory, function_of


def discrete_actions(space: Space[Any], words: Sequence[str], where: str) -> Callable[[str, Any], int | None]:
    """Return a function that finds the last action in a text: a word, without regard to case, or a whole number.

    Args:
        space: the actions of the environment.
        words: a word for each action, from the first to the last; none for numbers.
        where: path of the section, for messages.

    Raises:
        ConfigError: the space is not discrete, or has another number of actions than there are words.
    """
    if not isinstance(space, Discrete):
        raise ConfigError(
            f"{where}.act: the actions of this environment are {space}, which only a function of yours can read from a "
            "text; give `act: module:function`, which is called as act(text, env)"
        )
    count, start = int(space.n), int(space.start)
    if words and (len(words) != count or len({word.lower() for word in words}) != count):
        raise ConfigError(f"{where}.actions = {list(words)}: must be {count} different words, one for each action")
    if words:
        numbers = {word.lower(): start + i for i, word in enumerate(words)}
        longest_first = sorted(map(re.escape, numbers), key=len, reverse=True)
    else:
        numbers = {str(number): number for number in range(start, start + count)}
        longest_first = [r"-?\d+"]
    pattern = re.compile(rf"(?<!\w)(?:{'|'.join(longest_first)})(?!\w)")

    def act(text: str, _env: object) -> int | None:
        found = pattern.findall(text.lower())
        return numbers.get(found[-1]) if found else None

    return act


class GymnasiumGame:
    """One episode (`rlcore.protocols.Environment`).

    Args:
        factory: the factory that made it.
    """

    def __init__(self, factory: Gymnasium) -> None:
        self._factory, self._return = factory, 0.0
        self._env: Any = None

    def reset(self, row: Mapping[str, Any], *, seed: int) -> str:
        """Return the rules and the first observation; a row may have `options`, which Gymnasium's `reset` receives."""
        self._env = self._factory.make_env()
        observation, _ = self._env.reset(seed=seed, options=row.get("options"))
        return "\n\n".join(filter(None, [self._factory.config.rules, self._text(observation)]))

    def step(self, turn: Turn) -> Step:
        """Perform the action in a turn, and return the next observation."""
        config, action = self._factory.config, self._factory.act(turn.text, self._env)
        if action is None:
            info = self._info(config.invalid_reward, {"invalid": 1.0})
            return Step(self._factory.hint, config.invalid_reward, done=config.invalid == "end", info=info)
        observation, reward, done, truncated, found = self._env.step(action)
        named = {name: float(value) for name, value in found.items() if isinstance(value, numbers.Real)}
        info = self._info(float(reward), {"invalid": 0.0, **named})
        return Step(self._text(observation), float(reward), done=bool(done), truncated=bool(truncated), info=info)

    def close(self) -> None:
        """Close the environment of Gymnasium."""
        if self._env is not None:
            self._env.close()
        self._env = None

    def _info(self, reward: float, info: dict[str, float]) -> dict[str, float]:
        self._return += reward
        threshold = self._factory.config.success_return
        return info if threshold is None else {**info, "success": self._return >= threshold}

    def _text(self, observation: object) -> str:
        text = self._factory.observe(observation, self._env)
        if not isinstance(text, str):
            raise TypeError(f"{WHERE}.observe returned {text!r:.80} ({type(text).__name__}), not a text")
        return text


class Gymnasium(SeedFactory):
    """A factory of episodes with an environment of Gymnasium.

    Args:
        config: its options.

    Raises:
        ConfigError: Gymnasium cannot make the environment, or its actions need a function.
    """

    episode = GymnasiumGame

    def __init__(self, config: GymnasiumConfig) -> None:
        super().__init__(config)
        self.observe = function_of(config.observe, f"{WHERE}.observe") or (lambda observation, _: str(observation))
        act = function_of(config.act, f"{WHERE}.act")
        try:
            env = self.make_env()
        except Exception as error:  # an environment's own code may raise anything
            raise ConfigError(f"{WHERE}.id = {config.id!r}: cannot be made: {describe_error(error)}") from error
        space, self.max_turns = env.action_space, getattr(env.spec, "max_episode_steps", None) or 0
        env.close()
        self.example_turns = config.actions
        self.act = act or discrete_actions(space, config.actions, WHERE)
        self.hint = f"Write one of: {', '.join(config.actions)}." if config.actions else "Write an action."

    def make_env(self) -> Any:
        """Return a new environment of Gymnasium."""
        return gymnasium.make(self.config.id, **self.config.options)
