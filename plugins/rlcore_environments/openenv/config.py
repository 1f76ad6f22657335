"""Options of the environment `openenv`, and its factory, which imports nothing of rlcore."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from rlcore.config import config, option, unstructure
from rlcore.errors import ConfigError
from rlcore_environments.openenv.episodes import OpenEnv, secret_headers
from rlcore_environments.options import SeedOptions


@config
class OpenEnvConfig(SeedOptions):
    """Options of the environment `openenv`."""

    url: str = option(attrs.NOTHING, "address of the server, such as http://127.0.0.1:8000")
    headers: Mapping[str, str] = option(attrs.Factory(dict), "HTTP headers of the connection, such as X-Team")
    header_env: Mapping[str, str] = option(
        attrs.Factory(dict), "further headers, such as {Authorization: OPENENV_HEADER}: names of environment variables "
        "with their values; a key does not belong in a configuration",
    )  # fmt: skip
    rules: str = option("", "text before the first observation, which describes the task")
    action_field: str = option("message", "field of the action that receives the text of a turn")
    act: str | None = option(
        None, "`module:function` that is called as act(text) and returns the fields of the action; default: "
        "`action_field` alone",
    )  # fmt: skip
    observation_field: str | None = option(
        None, "field of the observation that the policy reads; default: all fields, as JSON"
    )
    observe: str | None = option(
        None, "`module:function` that is called as observe(fields) and returns a text; default: `observation_field`"
    )
    success_return: float | None = option(
        None, "an episode whose rewards add up to at least this is a success; default: no success is reported"
    )
    max_turns: int = option(0, "most turns of the policy; 0: those of `data.episodes.max_turns`", ge=0)
    reset: Mapping[str, Any] = option(attrs.Factory(dict), "further arguments of the environment's `reset`")
    train_split: str | None = option(
        None, "split of the server's tasks to train on; `reset` then receives `split` and `index`; default: no tasks"
    )
    eval_split: str | None = option(None, "split of the server's tasks to evaluate on")
    connect_timeout_s: float = option(10.0, "longest time to connect to the server", gt=0, unit="seconds")
    message_timeout_s: float = option(60.0, "longest time to wait for an answer", gt=0, unit="seconds")

    def __attrs_post_init__(self) -> None:
        """Check the options against one another."""
        if not self.url.startswith(("http://", "https://", "ws://", "wss://")):
            raise ConfigError(f"url = {self.url!r}: must begin with http://, https://, ws:// or wss://")
        if self.train_split is not None and self.train_split == self.eval_split:
            raise ConfigError(f"eval_split = {self.eval_split!r}: must differ from train_split")
        if self.train_split is None and self.eval_split is not None:
            raise ConfigError(f"eval_split = {self.eval_split!r}: needs train_split")


def make_factory(config: OpenEnvConfig) -> OpenEnv:
    """Return the factory of episodes; it can be sent to a process of another Python, which may lack rlcore.

    Raises:
        ConfigError: an environment variable with a header is not set, or its value cannot be sent.
    """
    factory = OpenEnv(unstructure(config))
    try:
        secret_headers(factory.options["header_env"])
    except ValueError as error:
        raise ConfigError(f"data.environment.header_env: {error}") from None
    return factory
