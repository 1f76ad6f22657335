"""Options of an MCP server, and what it receives from the environment of the run."""

from __future__ import annotations

import os
from typing import Literal

import attrs

from rlcore.config import config, option
from rlcore.errors import ConfigError
from rlcore.safe_text import shorten


@config
class McpOptions:
    """Options of an MCP server: how it is started or reached, and what of it is used."""

    command: str | None = option(
        None, "program that is started and speaks MCP over its standard input and output; `python`: the interpreter of "
        "the run"
    )  # fmt: skip
    args: list[str] = option((), "arguments of the program")
    env: dict[str, str] | None = option(
        None, "environment variables that the program has in addition to a few such as PATH and HOME"
    )
    env_from: list[str] = option(
        (), "names of environment variables of the run that the program has too, such as those with keys, which do not "
        "belong in a configuration"
    )  # fmt: skip
    cwd: str | None = option(None, "folder in which the program is started")
    url: str | None = option(None, "address of a server that speaks MCP over HTTP")
    key_env: str | None = option(
        None, "name of the environment variable with the key of the server at `url`, which is sent as a bearer token; "
        "the key itself does not belong in a configuration",
    )  # fmt: skip
    header_env: dict[str, str] = option(
        attrs.Factory(dict), "further headers of requests to `url`: names of environment variables with their values"
    )
    only: list[str] | None = option(None, "names of the server's tools that the policy may call; default: all")
    session: Literal["episode", "run"] = option(
        "episode",
        "`episode`: each episode that calls a tool of the server has a session of its own, and so a program; `run`: "
        "all episodes share one, for servers without state",
    )

    def check(self) -> None:
        """Check the options against one another, and against the environment of the run.

        Raises:
            ConfigError: options do not fit together, or an environment variable is not set or cannot be sent.
        """
        if (self.command is None) == (self.url is None):
            raise ConfigError("give one of `command`, a program to start, and `url`, an address")
        if self.url is None and (self.key_env is not None or self.header_env):
            raise ConfigError("key_env and header_env are for a server with a `url`; give a program `env_from`")
        if self.command is None and self.env_from:
            raise ConfigError("env_from is for a program; give a server with a `url` key_env or header_env")
        self.headers(), self.secrets()

    @property
    def name(self) -> str:
        """The server in messages."""
        return f"the MCP server '{self.url or ' '.join([str(self.command), *self.args])}'"

    def secrets(self) -> dict[str, str]:
        """Return the environment variables of the run that the program has.

        Raises:
            ConfigError: one of them is not set.
        """
        for name in self.env_from:
            if name not in os.environ:
                raise ConfigError(f"env_from: the environment variable {shorten(name)} is not set")
        return {name: os.environ[name] for name in self.env_from}

    def headers(self) -> dict[str, str]:
        """Return the headers of requests, whose values are in environment variables.

        Raises:
            ConfigError: a variable is not set, or its value cannot be sent; the message has no value.
        """
        key = {} if self.key_env is None else {"Authorization": self.key_env}
        found = {}
        for name, variable in {**self.header_env, **key}.items():
            value = os.environ.get(variable, "").strip()
            if not value:
                raise ConfigError(f"the environment variable {shorten(variable)} is not set; it has the header {name}")
            if not (value.isascii() and value.isprintable()):
                raise ConfigError(f"the value of {shorten(variable)} has characters that no header can have")
            found[name] = f"Bearer {value}" if name in key else value
        return found
