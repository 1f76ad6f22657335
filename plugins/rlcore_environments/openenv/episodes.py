"""Episodes on an OpenEnv server. It imports the standard library and `openenv` only, so that any Python runs it."""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rlcore.types import Options, Row

MISSING = (
    "the package 'openenv' is not installed in this Python ({python}): run pip install openenv, or name a Python that "
    "has it in data.episodes.python, with data.episodes.isolate: process"
)


class OpenEnv:
    """A factory of episodes on a server (`rlcore.protocols.EnvironmentFactory`).

    Args:
        options: those of `rlcore_environments.openenv.config.OpenEnvConfig`, as plain values.
    """

    def __init__(self, options: Options) -> None:
        self.options, self.max_turns = dict(options), int(options["max_turns"])

    def make(self) -> ServerSession:
        """Return the environment of one episode.

        Raises:
            ImportError: `openenv` is not installed.
        """
        return ServerSession(self.options)

    def rows(self, split: str) -> list[dict[str, Any]] | None:
        """Return the rows of a split. Their seeds follow one another: first those of `eval`, then those of `train`."""
        held_out = self.options["eval_rows"]
        first, count = (0, held_out) if split == "eval" else (held_out, self.options["train_rows"])
        rows: list[dict[str, object]] = [{"seed": self.options["seed"] + first + i} for i in range(count)]
        tasks = self.options[f"{split}_split"]
        if tasks is not None:
            rows = [{**row, "reset": {"split": tasks, "index": i}} for i, row in enumerate(rows)]
        elif self.options["train_split"] is not None:  # tasks to train on only
            return None
        return rows or None


class ServerSession:
    """One episode: a session on the server (`rlcore.protocols.Environment`).

    Args:
        options: those of the factory.
    """

    def __init__(self, options: Options) -> None:
        try:
            from openenv.core import GenericEnvClient
        except ImportError as error:
            raise ImportError(MISSING.format(python=sys.executable)) from error
        self._options, self._return, self._rewarded = options, 0.0, False
        self._act = _load(options["act"]) or (lambda text: {options["action_field"]: text})
        self._observe = _load(options["observe"]) or self._field
        self._client: Any = GenericEnvClient(
            base_url=options["url"],
            headers={**options["headers"], **secret_headers(options["header_env"])} or None,
            connect_timeout_s=options["connect_timeout_s"], message_timeout_s=options["message_timeout_s"],
        )  # fmt: skip

    async def reset(self, row: Row, *, seed: int) -> str:
        """Return the rules and the first observation; the row's `reset` has further arguments for the server."""
        await self._client.connect()
        self._socket = self._client._ws  # noqa: SLF001  a client that reconnects has lost its session
        found = await self._client.reset(seed=seed, **{**self._options["reset"], **(row.get("reset") or {})})
        if found.done:
            raise RuntimeError("the episode was over before the first turn")
        return "\n\n".join(filter(None, [self._options["rules"], self._observe(found.observation)]))

    async def step(self, turn: Any) -> dict[str, Any]:
        """Send an action, and return the observation."""
        found = await self._client.step(self._act(turn.text))
        if self._client._ws is not self._socket:  # noqa: SLF001
            raise ConnectionError("the connection to the server was lost, and the episode with it")
        self._rewarded = self._rewarded or found.reward is not None
        if found.done and not self._rewarded:
            raise RuntimeError("the episode ended, and none of its observations had a reward")
        self._return += float(found.reward or 0.0)
        numbers = {k: float(v) for k, v in (found.metadata or {}).items() if isinstance(v, (bool, int, float))}
        if self._options["success_return"] is not None:
            numbers["success"] = self._return >= self._options["success_return"]
        text = self._observe(found.observation)
        return {"messages": text, "reward": float(found.reward or 0.0), "done": bool(found.done), "info": numbers}

    async def close(self) -> None:
        """End the session."""
        await self._client.close()

    def _field(self, observation: Mapping[str, object]) -> str:
        name = self._options["observation_field"]
        if name is None:
            fields = {key: value for key, value in observation.items() if key != "metadata"}
            return json.dumps(fields, ensure_ascii=False)
        if not isinstance(observation.get(name), str):
            raise TypeError(f"the observation has no text '{name}' (observation_field); it is {observation!r:.200}")
        return str(observation[name])


def secret_headers(variables: Mapping[str, str]) -> dict[str, str]:
    """Return headers whose values are in environment variables, which a process inherits from the run.

    Raises:
        ValueError: a variable is not set, or its value cannot be sent; the message does not have the value.
    """
    found = {name: os.environ.get(variable, "").strip() for name, variable in variables.items()}
    for name, value in found.items():
        if not value:
            raise ValueError(f"the environment variable {variables[name]!r} is not set; it has the header {name}")
        if not (value.isascii() and value.isprintable()):
            raise ValueError(f"the value of {variables[name]!r} has characters that no header can have")
    return found


def _load(reference: str | None) -> Callable[[Any], Any] | None:
    if reference is None:
        return None
    if str(Path.cwd()) not in sys.path:
        sys.path.append(str(Path.cwd()))
    module, _, name = reference.partition(":")
    function: Callable[[Any], object] = getattr(importlib.import_module(module), name)
    return function
