"""The options of episodes, which are the section `data.episodes`, and of the environment `tools`.

Also in this file: the options of an MCP server.
"""

from __future__ import annotations

import os
from typing import Any, Literal

import attrs

from rlcore.config import config, option
from rlcore.errors import ConfigError
from rlcore.safe_text import hide_keys, is_secret, is_variable, names_key, show


@config
class EpisodeOptions:
    """Limits of episodes, calls of environments and failures."""

    max_turns: int = option(0, "most turns of the policy; 0: the environment's own limit, else 16", ge=0)
    max_new_tokens: int = option(
        0, "most tokens of the policy in all turns together; `gen.max_new_tokens` limits each turn; 0: no limit", ge=0,
        unit="tokens",
    )  # fmt: skip
    timeout_s: float = option(
        60.0, "an episode fails if one call of its environment takes longer", gt=0, le=1e9, unit="seconds"
    )
    concurrency: int = option(
        32, "most calls of environments at a time; an environment's own limit takes precedence if it is lower", ge=1
    )
    cohorts: int = option(
        1, "so many parts of the episodes take turns: while the environments of one answer, the next is sampled; more "
        "than 1 pays off if environments are slow", ge=1,
    )  # fmt: skip
    retries: int = option(
        0, "how often an episode that failed is played again up to the turn that failed, if the environment is "
        "replayable", ge=0,
    )  # fmt: skip
    refill: int = option(
        0, "how often an episode that failed is replaced by a new one to the same prompt, sampled with other random "
        "numbers, after the others are over", ge=0,
    )  # fmt: skip
    lazy: bool = option(
        False, "reset environments when episodes begin, and not also when the prompts are read; their first messages "
        "are then part of the episodes, and not of the prompts"
    )  # fmt: skip
    curriculum: Any = option(
        None, "columns of rows that move over the run, by name: `{from, to, over}`, over so many steps, or `{from, to, "
        "success, by}`, by so much after each round of which this share of the episodes succeeded; implies `lazy`"
    )  # fmt: skip
    seeds: Literal["fixed", "fresh"] = option(
        "fixed",
        "`fixed`: a row has the same seed whenever it is played; `fresh`: another one in each step of training, unless "
        "the row states its own; implies `lazy`",
    )
    record_tokens: bool = option(
        False, "record the token ids of episodes in their transcripts, so that those who learn from recorded episodes "
        "learn from exactly the tokens that were sampled"
    )  # fmt: skip
    max_failed: float = option(
        0.5, "the run ends if a larger share of the episodes of a round, or of an evaluation, fails", ge=0, le=1
    )
    history: Literal["rendered", "sampled"] = option(
        "rendered",
        "`rendered`: refuse a chat template that renders earlier turns in another way than they were sampled; "
        "`sampled`: keep earlier turns as they were sampled",
    )
    keep_states: bool = option(
        True, "keep the keys and values of earlier turns, so that each turn reads only what was added to its episode"
    )
    isolate: Literal["none", "process", "episode"] = option(
        "none",
        "`process`: environments run in a process of their own, which is started again if it dies; `episode`: each of "
        "them in one, for libraries with global state",
    )
    thread: Literal["episode", "main"] = option(
        "episode",
        "`episode`: the calls of an episode run in one thread of its own, and those of its tools in another; `main`: "
        "all calls run in the main thread, one at a time and without a limit of time, for code that depends on it, "
        "such as `signal.alarm`",
    )
    python: str | None = option(
        None, "Python interpreter of that process, such as that of another virtual environment; default: this one"
    )

    @property
    def runs_in_main(self) -> bool:
        """Whether calls run in the main thread of this process."""
        return self.thread == "main" and self.isolate == "none"

    def __attrs_post_init__(self) -> None:
        """Check that an interpreter has a process."""
        if self.python is not None and self.isolate == "none":
            raise ConfigError(
                f"python = {show(self.python)}: has no effect, since environments run in this process; set isolate to "
                "`process` or `episode`, or leave it out"
            )


@config
class ToolOptions:
    """Options of the environment `tools`."""

    functions: Any = option(
        None, "functions, or `module:function` of each, whose docstrings describe the arguments, and MCP servers, "
        "`{mcp: {command, args}}` or `{mcp: {url}}`"
    )  # fmt: skip
    max_calls: int = option(
        16, "most calls in one episode, those that cannot be run among them; further ones are answered with an error",
        ge=1,
    )  # fmt: skip
    timeout_s: float = option(10.0, "a call that takes longer is answered with an error", gt=0, le=1e9, unit="seconds")
    max_output: int = option(
        4096, "longer results and errors are cut off, with a note of their length", ge=1, unit="characters"
    )
    role: str = option("tool", "role of the messages with results")


@config
class SeedOptions:
    """Options of an environment whose rows are seeds."""

    train_rows: int = option(1024, "rows to train on", ge=1, le=10**7)
    eval_rows: int = option(64, "rows to evaluate on; their seeds are not among those to train on", ge=0, le=10**7)
    seed: int = option(0, "seed of the first row; every row has a seed of its own", ge=0, le=10**9)


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
        named = {f"header_env.{name}": names_key(variable) for name, variable in self.header_env.items()}
        named |= {} if self.key_env is None else {"key_env": names_key(self.key_env)}
        for where, is_name in (named | {"env_from": all(map(is_variable, self.env_from))}).items():
            if not is_name:
                raise ConfigError(
                    f"{where}: is no name of an environment variable; set it to the name, such as SERVER_KEY, and the "
                    "variable to the key"
                )
        self.headers(), self.secrets()

    def hide(self, text: str) -> str:
        """Return a text of the server's without the keys that it was sent."""
        given = [value for name, value in (self.env or {}).items() if is_secret(name)]
        return hide_keys(text, [*given, *self.secrets().values()])

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
                raise ConfigError(f"env_from: the environment variable '{name}' is not set")
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
                raise ConfigError(f"the environment variable '{variable}' is not set; it has the header {name}")
            if not (value.isascii() and value.isprintable()):
                raise ConfigError(f"the value of '{variable}' has characters that no header can have")
            found[name] = f"Bearer {value}" if name in key else value
        return found
