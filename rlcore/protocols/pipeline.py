"""Functions that turn data sources into prompts and rows to train on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

from rlcore.types import Prompt

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from rlcore.settings import DataConfig


class PromptPipeline(Protocol):
    """A function that turns a data source into prompts; the built-in one is `rlcore.data.prompts.build_prompts`.

    A pipeline whose rows have a format of their own provides examples for the conformance kit in an attribute
    `example_rows`.
    """

    def __call__(
        self, source: Any, tokenizer: PreTrainedTokenizerBase, data: DataConfig, *, max_length: int, what: str = ...
    ) -> list[Prompt]:
        """Tokenise a source; the result must be the same on every rank.

        Args:
            source: what the user passed; `rlcore.data.sources.load_source` turns every supported form into rows, and
                `rlcore.data.rows.load_rows` also renames columns and converts known formats.
            tokenizer: the policy's tokenizer.
            data: the section `data` of the configuration: columns, limits, special tokens; not its sources.
            max_length: the policy's context length in tokens, prompt and continuation together; 0 if unbounded.
            what: name of the option that holds the source, for error messages.

        Returns:
            One `Prompt` per row, in the order of the rows.
        """
        ...


class SamplePipeline(Protocol):
    """A function that turns a data source into rows to train on; built-in: `rlcore.data.samples.build_samples`.

    A demonstration is a `Sample`. A row of more than one sequence is an object of an attrs class whose fields are
    samples, tuples or lists of samples, and plain values: `rlcore.types.Pair`, or a class of the plugin's own.
    `run.samples` then holds these objects, in which the core finds the sequences (`rlcore.types.sequences_of`) to
    fingerprint and to plan them.

    A pipeline whose rows have a format of their own provides examples for the conformance kit in an attribute
    `example_rows`.
    """

    def __call__(
        self, source: Any, tokenizer: PreTrainedTokenizerBase, data: DataConfig, *, max_length: int, what: str = ...
    ) -> Sequence[Any]:
        """Tokenise a source and mark the tokens to train on; the result must be the same on every rank.

        Args:
            source: what the user passed; `rlcore.data.sources.load_source` turns every supported form into rows, and
                `rlcore.data.rows.load_rows` also renames columns and converts known formats.
            tokenizer: the policy's tokenizer.
            data: the section `data` of the configuration: columns, limits, special tokens; not its sources.
            max_length: the policy's context length in tokens; 0 if unbounded.
            what: name of the option that holds the source, for error messages.

        Returns:
            One `Sample`, or one object of another class, per row, in the order of the rows. A row may give several,
            such as one for each turn of a conversation, if it is not streamed.
        """
        ...
