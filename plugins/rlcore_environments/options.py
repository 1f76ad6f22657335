"""The options of episodes, which are the section `data.episodes`, and of the environment `tools`."""

from __future__ import annotations

from typing import Any, Literal

from rlcore.config import config, option
from rlcore.errors import ConfigError
from rlcore.safe_text import show


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
