"""Environments: what a policy talks to in episodes of several turns. Messages go in and out, never token ids."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import attrs

from rlcore.protocols.algorithms import Sampler
from rlcore.protocols.pipeline import PromptPipeline
from rlcore.types import Prompt, Sample

Messages = str | Mapping[str, Any] | Sequence[Mapping[str, Any]]
"""A text, which is a message of the role `user`, a message {role, content}, or a list of messages."""


@attrs.frozen
class Turn:
    """What the policy wrote in one turn.

    Attributes:
        text: the decoded turn, without the token or stop sequence that ended it.
        index: 0 for the first turn of the episode.
        truncated: whether the limit of tokens cut the turn off.
        tool_calls: the calls in the text, each {name, arguments} or {error}, if the environment declares `tools`.
    """

    text: str
    index: int
    truncated: bool = False
    tool_calls: Sequence[Mapping[str, Any]] = ()


@attrs.frozen
class Step:
    """The answer of an environment to a turn.

    Attributes:
        messages: what the policy reads next; it may be empty only if the episode is over.
        reward: of this turn; or several by name, of which the sum counts.
        done: the episode has reached its end.
        truncated: the environment cuts the episode off, although it has not reached its end.
        info: plain values for logs and reward functions; numbers in it become metrics.
        stop: strings that end the policy's next turn, beside `gen.stop_sequences`.
    """

    messages: Messages = ()
    reward: float | Mapping[str, float] = 0.0
    done: bool = False
    truncated: bool = False
    info: Mapping[str, Any] = attrs.field(factory=dict)
    stop: str | Sequence[str] = ()


class Environment(Protocol):
    """One episode; there is an object for each completion, and none is used twice. Methods may be coroutines.

    An optional method `close()` is called once, whatever happened before it.
    """

    def reset(self, row: Mapping[str, Any], *, seed: int) -> Messages:
        """Return the first messages; they follow from the arguments alone. Empty if the row's prompt is all.

        Args:
            row: the row of the prompts, or of the environment's own `rows`.
            seed: the only source of random numbers; the same for all completions of a row.
        """
        ...

    def step(self, turn: Turn) -> Step:
        """Answer a turn. Text, a number, or a pair of both is a short form of a `Step`.

        Args:
            turn: what the policy wrote.
        """
        ...


class EnvironmentFactory(Protocol):
    """What is registered with `register_environments`: a class of environments, or an object with the method `make`.

    Optional attributes, of a class as well: `tools` (JSON schemas, which the chat template renders), `max_turns`,
    `concurrency` (most calls at a time), `replayable` (false if the same turns may have other answers), `reward_names`
    (rewards that are metrics of every episode, 0 where they are not given), `gives_rewards` (false if all rewards are
    those of reward functions), and the methods `rows(split)`, which returns the rows of `train` or `eval` that the user
    does not give, and `shutdown()`.
    """

    def make(self) -> Environment:
        """Return the environment of one episode."""
        ...


class EpisodePlayer(Protocol):
    """Plays episodes of a run's environment, as a plugin returns it for the hook `play_environment`."""

    def rows(self, split: str) -> Sequence[Mapping[str, Any]] | None:
        """Return the environment's own rows; None if it has none.

        Args:
            split: `train` or `eval`.
        """
        ...

    def pipeline(self, pipeline: PromptPipeline) -> PromptPipeline:
        """Return a pipeline that adds the first messages of the environment to the prompts of another one.

        Args:
            pipeline: the pipeline that the run has chosen.
        """
        ...

    def sampler(self, sampler: Sampler) -> Sampler:
        """Return a sampler of whole episodes, which returns `rlcore.types.Episodes`.

        Args:
            sampler: the sampler that the run has chosen; it samples each turn.
        """
        ...

    def example(self, prompt: Prompt, tokenizer: Any) -> tuple[Sample, list[dict[str, Any]]]:
        """Return an episode without a model, for a preview: its tokens, and who said what.

        Args:
            prompt: a prompt with the environment's first messages.
            tokenizer: the policy's tokenizer.
        """
        ...

    def close(self) -> None:
        """End what is still open; called once, at the end of the run."""
        ...
