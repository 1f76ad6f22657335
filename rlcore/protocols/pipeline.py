"""Functions that turn data sources into prompts and rows to train on, and what they may offer beside that.

Also in this file: environments: what a policy talks to in episodes of several turns. Messages go in and out, never
token ids.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

import attrs

from rlcore.components import Traits
from rlcore.protocols.algorithms import Sampler
from rlcore.protocols.run_views import RunView
from rlcore.types import Prompt, Row, Sample, SampleReward, State

if TYPE_CHECKING:
    from torch import Tensor

    from rlcore.settings import DataConfig


class Tokenizer(Protocol):
    """What the core calls of a model's tokenizer: the text of sampled tokens, for reward functions and logs.

    The tokenizers of `transformers` have this method. Pipelines and architectures may require more of a tokenizer; the
    built-in ones require one of `transformers`.
    """

    def decode(
        self, token_ids: list[list[int]], *, skip_special_tokens: bool, clean_up_tokenization_spaces: bool
    ) -> str | list[str]:
        """Return a list with the text of each sequence of token ids.

        Args:
            token_ids: one or more sequences.
            skip_special_tokens: leave out special tokens, such as EOS.
            clean_up_tokenization_spaces: always False; the text is that of the tokens, with all of their spaces.
        """
        ...


class TokenizerTraits(Traits):
    """What a tokenizer may offer beside `Tokenizer`."""

    fingerprint_parts: Sequence[str | bytes] = ()
    """What decides which tokens a row becomes beside the vocabulary, such as the options of a processor of images."""


class PromptPipeline(Protocol):
    """A function that turns a data source into prompts; `prompts` is one.

    One that is a `PreviewPipeline` lets a run check reward functions before it loads the model.
    """

    def __call__(
        self, source: Any, tokenizer: Any, data: DataConfig, *, max_length: int, what: str = ...
    ) -> list[Prompt]:
        """Tokenise a source; the result must be the same on every rank.

        Args:
            source: what the user passed: rows, a file, a data set or a stream; the package of the default pipelines has
                functions that read every form.
            tokenizer: the policy's tokenizer, such as one of `transformers`.
            data: the section `data` of the configuration: columns, limits, special tokens; not its sources.
            max_length: the policy's context length in tokens, prompt and continuation together; 0 if unbounded.
            what: name of the option that holds the source, for error messages.

        Returns:
            One `Prompt` per row, in the order of the rows.
        """
        ...


class SamplePipeline(Protocol):
    """A function that turns a data source into rows to train on; `samples` is one.

    A demonstration is a `Sample`. A row of more than one sequence is an object of an attrs class whose fields are
    samples, tuples or lists of samples, and plain values: a class of the plugin's own, such as one of pairs.
    `run.samples` then holds these objects, in which the core finds the sequences (`rlcore.types.sequences_of`) to
    fingerprint and to plan them.

    One that is a `SourcePipeline` opens its streams and reads further sources of the run itself; otherwise the pipeline
    `samples` does.
    """

    def __call__(
        self, source: Any, tokenizer: Any, data: DataConfig, *, max_length: int, what: str = ...
    ) -> Sequence[Any]:
        """Tokenise a source and mark the tokens to train on; the result must be the same on every rank.

        Args:
            source: what the user passed: rows, a file, a data set or a stream; the package of the default pipelines has
                functions that read every form.
            tokenizer: the policy's tokenizer, such as one of `transformers`.
            data: the section `data` of the configuration: columns, limits, special tokens; not its sources.
            max_length: the policy's context length in tokens; 0 if unbounded.
            what: name of the option that holds the source, for error messages.

        Returns:
            One `Sample`, or one object of another class, per row, in the order of the rows. A row may give several,
            such as one for each turn of a conversation, if it is not streamed.
        """
        ...


class PipelineTraits(Traits):
    """What a pipeline may offer beside `PromptPipeline` and `SamplePipeline`."""

    example_rows: Sequence[Any] | None = None
    """Rows for the conformance kit, of a pipeline whose rows have a format of their own."""


@runtime_checkable
class PreviewPipeline(Protocol):
    """A pipeline of prompts that returns the first rows of a source without a tokenizer.

    With them, a run checks the signatures of reward and metric functions, and calls those that keep no state, before it
    loads the model. Without this method, nothing is checked before.
    """

    def preview(self, source: Any, data: DataConfig, *, what: str) -> tuple[list[Prompt], bool] | None:
        """Return the first two prompts, with all columns of the source, and whether their texts are final.

        Args:
            source: what the user passed.
            data: the section `data` of the configuration.
            what: name of the option that holds the source, for error messages.

        Returns:
            Prompts with any tokens, and False if their texts are known only once a tokenizer renders them; None if the
            source cannot be read twice, if reading it takes long, or if it has no rows.
        """
        ...


class RowStream(Protocol):
    """Rows to train on that are read while a run trains, and their order; all ranks read the same rows."""

    is_usable: Callable[[Any], bool]
    """Returns whether a row is trained on; others are left out. A trainer may set it before the first row is taken."""

    @property
    def epoch(self) -> float:
        """The number of whole passes over the rows."""
        ...

    def num_batches(self, size: int) -> int | None:
        """Return the number of batches in a pass, or None, since the length of a stream is unknown.

        Args:
            size: rows of a batch.
        """
        ...

    def take_within_pass(self, num: int) -> list[int]:
        """Read the next usable rows, and return their indices; after the end of a pass the next one begins.

        Args:
            num: number of rows; fewer are returned if the pass ends before.
        """
        ...

    def __getitem__(self, index: int) -> Any:
        """Return one of the rows that were taken last.

        Args:
            index: an index that `take_within_pass` returned.
        """
        ...

    def head(self) -> Sequence[Any]:
        """Return the first rows of the first pass, by which a resumed run recognises its data."""
        ...

    def state_dict(self) -> State:
        """Return how far the stream has been read, as plain values."""
        ...

    def load_state_dict(self, state: State) -> None:
        """Continue after the row that was read last.

        Args:
            state: what `state_dict` returned.

        Raises:
            CheckpointError: it is the state of rows that were not streamed.
        """
        ...


@runtime_checkable
class SourcePipeline(Protocol):
    """A pipeline that opens streams, and reads sources that are not tokenised: rewards of samples, and logit masks."""

    def open_stream(
        self,
        source: Any,
        data: DataConfig,
        *,
        seed: int,
        read: Callable[[Sequence[Any], str], Sequence[Any]],
        what: str = ...,
    ) -> RowStream | None:
        """Return the stream of a source, or None if all of its rows are to be read before the first step.

        Args:
            source: what the user passed; None if there is none.
            data: the section `data` of the configuration, with `streaming` and `shuffle_buffer`.
            seed: seed of the order of the rows.
            read: tokenises some rows; called with them and with their name in errors.
            what: name of the option that holds the source, for error messages.

        Raises:
            DataError: the source cannot be streamed.
        """
        ...

    def read_rewards(
        self, source: Any, samples: Sequence[Sample], columns: Mapping[str, str], *, what: str
    ) -> list[SampleReward]:
        """Return the reward of each token of each sample.

        Args:
            source: what the user passed, one entry for each sample.
            samples: the tokenised samples.
            columns: a name → the column of the source that gets this name.
            what: name of the option that holds the source, for error messages.

        Raises:
            DataError: the source cannot be read, has none of the columns, or does not fit the samples.
        """
        ...

    def read_logit_mask(self, source: Any, what: str = ...) -> Tensor:
        """Return which tokens may follow each token: bool[V, V] on the CPU; V is the size of the vocabulary.

        Args:
            source: what the user passed.
            what: name of the option that holds the source, for error messages.

        Raises:
            DataError: the source cannot be read, or is no such table.
        """
        ...


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
    """One episode; there is an object for each completion, and none is used twice. Methods may be coroutines."""

    def reset(self, row: Row, *, seed: int) -> Messages:
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


class EnvironmentTraits(Traits):
    """What an environment may offer beside `Environment`."""

    def close(self) -> Any:
        """End the episode; called once, whatever happened before. It may be a coroutine."""


class EnvironmentFactory(Protocol):
    """What is registered with `register_environments`: a class of environments, or an object with the method `make`."""

    def make(self) -> Environment:
        """Return the environment of one episode."""
        ...


class EnvironmentFactoryTraits(Traits):
    """What a class or a factory of environments may state and offer beside `EnvironmentFactory`."""

    tools: Sequence[Any] | None = None
    """JSON schemas of tools, which the chat template renders."""
    max_turns: int | None = 0
    """Most turns of the policy; 0 or None for no limit of its own."""
    concurrency: int | None = 0
    """Most calls at a time; 0 or None for no limit of its own."""
    replayable: bool = True
    """Whether the same row, seed and turns have the same answers."""
    gives_rewards: bool = True
    """False if all rewards are those of reward functions."""
    reward_names: Sequence[str] = ()
    """Rewards that are metrics of every episode, 0 where they are not given."""
    rows: Callable[[str], Any] | None = None
    """Returns the rows of `train` or `eval` that the user does not give."""
    shutdown: Callable[[], Any] | None = None
    """Ends what all environments share."""
    example_turns: Sequence[str] = ()
    """Texts with which episodes get somewhere, for previews and the conformance kit."""
    example_turns_of: Callable[[dict[str, Any], int], Sequence[str]] | None = None
    """Likewise, a function of a row and a seed."""
    example_row: Mapping[str, Any] = MappingProxyType({})
    """A row for the conformance kit, of environments without `rows`."""


class RewardTraits(Traits):
    """What a reward function may offer (`rlcore.hookspecs.register_rewards`)."""

    example_outputs: Callable[[], Mapping[str, Any]] | None = None
    """For the conformance kit, of a reward that scores no text: returns what is passed in place of texts, by the name
    of the parameter."""
    scorer: Any = None
    """The model that scores, which `rlcore plan` measures."""

    def open(self, run: RunView) -> object:
        """Receive the run; called once, before the first call. An error ends the run.

        Args:
            run: the run.
        """

    def close(self) -> object:
        """End processes or free memory; called once at the end of the run.

        Called again after it, the function starts anew.
        """


class EpisodePlayer(Protocol):
    """Plays episodes of a run's environment, as the service `episode_player` of a plugin returns it."""

    def rows(self, split: str) -> Sequence[Row] | None:
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
