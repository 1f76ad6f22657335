"""Options of the environment `gymnasium`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import attrs

from rlcore.config import config, option
from rlcore_environments.options import SeedOptions


@config
class GymnasiumConfig(SeedOptions):
    """Options of the environment `gymnasium`."""

    id: str = option(
        attrs.NOTHING, "id of the environment, such as FrozenLake-v1, or module:id if a module has to be imported first"
    )
    options: Mapping[str, Any] = option(
        attrs.Factory(dict), "arguments of `gymnasium.make`, such as {is_slippery: false, max_episode_steps: 20}"
    )
    rules: str = option("", "text before the first observation, which describes the task")
    observe: Any = option(
        None, "`module:function` that is called as observe(observation, env) and returns a text; default: `str`"
    )
    actions: tuple[str, ...] = option(
        (),
        "words for the actions of a discrete space, from the first action to the last; the last one in a turn counts",
    )
    act: Any = option(
        None, "`module:function` that is called as act(text, env) and returns an action, or None if the text has none; "
        "default: the last word of `actions`, else the last whole number, in a discrete space",
    )  # fmt: skip
    invalid: Literal["repeat", "end"] = option(
        "repeat", "after a turn without an action: `repeat` asks again, `end` ends the episode"
    )
    invalid_reward: float = option(0.0, "reward of a turn without an action")
    success_return: float | None = option(
        None, "an episode whose rewards add up to at least this is a success; default: no success is reported"
    )
