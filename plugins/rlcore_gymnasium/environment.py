"""The environment `gymnasium`: one environment of Gymnasium for each episode."""

from __future__ import annotations

import numbers
from collections.abc import Mapping
from typing import Any

import gymnasium

from rlcore.components import describe_error
from rlcore.errors import ConfigError
from rlcore.protocols import Step, Turn
from rlcore_gymnasium.actions import discrete_actions, function_of
from rlcore_gymnasium.config import GymnasiumConfig

WHERE = "data.environment"


class Gymnasium:
    """A factory of episodes with an environment of Gymnasium (`rlcore.protocols.EnvironmentFactory`).

    Args:
        config: its options.

    Raises:
        ConfigError: Gymnasium cannot make the environment, or its actions need a function.
    """

    def __init__(self, config: GymnasiumConfig) -> None:
        self.config = config
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

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.config,)

    def make(self) -> GymnasiumGame:
        """Return the environment of one episode."""
        return GymnasiumGame(self)

    def rows(self, split: str) -> list[dict[str, Any]] | None:
        """Return the rows of a split. Their seeds follow one another: first those of `eval`, then those of `train`."""
        first = self.config.seed + self.config.eval_rows
        last = first + self.config.train_rows
        seeds = range(self.config.seed, first) if split == "eval" else range(first, last)
        return [{"seed": seed} for seed in seeds] or None


class GymnasiumGame:
    """One episode (`rlcore.protocols.Environment`).

    Args:
        factory: the factory that made it.
    """

    def __init__(self, factory: Gymnasium) -> None:
        self._factory, self._over, self._return = factory, True, 0.0
        self._env: Any = None

    def reset(self, row: Mapping[str, Any], *, seed: int) -> str:
        """Return the rules and the first observation; a row may have `options`, which Gymnasium's `reset` receives."""
        self._env = self._factory.make_env()
        observation, _ = self._env.reset(seed=seed, options=row.get("options"))
        self._over = False
        return "\n\n".join(filter(None, [self._factory.config.rules, self._text(observation)]))

    def step(self, turn: Turn) -> Step:
        """Perform the action in a turn, and return the next observation."""
        if self._over or self._env is None:
            raise RuntimeError("step was called before reset, or after the end of the episode")
        config = self._factory.config
        action = self._factory.act(turn.text, self._env)
        if action is None:
            self._over = config.invalid == "end"
            return self._answer(self._factory.hint, config.invalid_reward, {"invalid": 1.0}, done=self._over)
        observation, reward, done, truncated, info = self._env.step(action)
        self._over = bool(done or truncated)
        found = {name: float(value) for name, value in info.items() if isinstance(value, numbers.Real)}
        return self._answer(
            self._text(observation),
            float(reward),
            {"invalid": 0.0, **found},
            done=bool(done),
            truncated=bool(truncated),
        )

    def close(self) -> None:
        """Close the environment of Gymnasium."""
        if self._env is not None:
            self._env.close()
        self._env, self._over = None, True

    def _answer(self, text: str, reward: float, info: dict[str, Any], **end: bool) -> Step:
        self._return += reward
        threshold = self._factory.config.success_return
        if threshold is not None:
            info = {**info, "success": self._return >= threshold}
        return Step(text, reward, info=info, **end)

    def _text(self, observation: Any) -> str:
        text = self._factory.observe(observation, self._env)
        if not isinstance(text, str):
            raise TypeError(f"{WHERE}.observe returned {text!r:.80} ({type(text).__name__}), not a text")
        return text
