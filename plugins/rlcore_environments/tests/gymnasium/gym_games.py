"""Functions and environments of the tests; a module that an id names registers its environments when it is imported."""

from __future__ import annotations

from typing import Any, ClassVar

import gymnasium


def observe(observation: Any, env: Any) -> str:
    fields = [list(row) for row in env.unwrapped.desc.astype(str)]
    row, column = divmod(int(observation), len(fields[0]))
    fields[row][column] = "P"
    return "\n".join("".join(row) for row in fields)


def act(text: str, env: Any) -> Any:
    words = text.split()
    return [float(words[-1])] if words else None


def letters(text: str, env: Any) -> Any:
    return [text.count("e") / 10]


class Fragile(gymnasium.Env[int, Any]):
    """Moves to the number that it is given; it raises below 0, and counts the environments that are open."""

    action_space = gymnasium.spaces.Box(-1.0, 1.0, (1,))
    observation_space = gymnasium.spaces.Discrete(2)
    open: ClassVar[set[int]] = set()

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[int, dict[str, Any]]:
        super().reset(seed=seed)
        self.open.add(id(self))
        return int((options or {}).get("start", 0)), {}

    def step(self, action: Any) -> tuple[int, float, bool, bool, dict[str, Any]]:
        if action[0] < 0:
            raise ArithmeticError("fell off")
        return 1, float(action[0]), False, action[0] == 1, {"place": action[0], "words": ["no number"]}

    def close(self) -> None:
        self.open.discard(id(self))


gymnasium.register("Fragile-v0", Fragile, disable_env_checker=True)
