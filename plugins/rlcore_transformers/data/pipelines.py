"""The pipelines `prompts` and `samples`: functions that tokenise, with the ways in which they read sources."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlcore.config import evolve
from rlcore.config.yaml_files import existing_path
from rlcore.types import Prompt, Sample, SampleReward, is_conversation
from rlcore_transformers.data.chat import make_chat
from rlcore_transformers.data.data_sets import is_instance, is_stream
from rlcore_transformers.data.logit_masks import load_logit_mask
from rlcore_transformers.data.mixed_streams import MixedStream, open_mixed_stream
from rlcore_transformers.data.mixture_sources import Source, parse_mixture
from rlcore_transformers.data.mixtures import mixing
from rlcore_transformers.data.prompts import build_prompts
from rlcore_transformers.data.rows import convert_prompt, rename_columns
from rlcore_transformers.data.sample_rewards import build_sample_rewards
from rlcore_transformers.data.samples import build_samples
from rlcore_transformers.data.sources import file_names, load_part, load_source, read_types
from rlcore_transformers.data.streams import SampleStream, open_stream

if TYPE_CHECKING:
    from torch import Tensor
    from transformers import PreTrainedTokenizerBase

    from rlcore.settings import DataConfig

LARGEST_FILE = 64 * 2**20
"""Files of prompts that are larger are not read for a preview, in bytes."""


class PromptsPipeline:
    """`build_prompts`, with a preview of its first rows."""

    def __call__(
        self,
        source: Any,
        tokenizer: PreTrainedTokenizerBase,
        data: DataConfig,
        *,
        max_length: int,
        what: str = "prompts",
    ) -> list[Prompt]:
        """Read and tokenise prompts."""
        return mixing(build_prompts)(source, tokenizer, data, max_length=max_length, what=what)

    def preview(self, source: Any, data: DataConfig, *, what: str) -> tuple[list[Prompt], bool] | None:
        """Return the first two rows of a source; None if reading it takes long, or can be done only once."""
        return preview(source, data, what)


class SamplesPipeline:
    """`build_samples`, which also opens streams and reads the rewards of samples."""

    def __call__(
        self,
        source: Any,
        tokenizer: PreTrainedTokenizerBase,
        data: DataConfig,
        *,
        max_length: int,
        what: str = "samples",
    ) -> list[Sample]:
        """Read and tokenise demonstrations."""
        return mixing(build_samples)(source, tokenizer, data, max_length=max_length, what=what)

    def open_stream(
        self,
        source: Any,
        data: DataConfig,
        *,
        seed: int,
        read: Callable[[Sequence[Any], str], Sequence[Any]],
        what: str = "samples",
    ) -> SampleStream | MixedStream | None:
        """Return the stream of a source of the `datasets` library, a file, a name on the hub, or a mixture of them."""
        if (sources := parse_mixture(source, what)) is not None:
            is_whole = not (data.streaming or any(is_stream(each.path) for each in sources))
            return None if is_whole else open_mixed_stream(sources, data, seed=seed, read=read)
        rows = open_stream(source, data, seed=seed, what=what)
        return None if rows is None else SampleStream(rows, read, what)

    def read_rewards(
        self, source: Any, samples: Sequence[Sample], columns: Mapping[str, str], *, what: str
    ) -> list[SampleReward]:
        """Return the rewards of any source of `load_source`, with columns renamed, on the tokens of their samples."""
        rows = rename_columns(load_source(source, what), columns, what, needed=list(columns))
        return build_sample_rewards(rows, samples, what)

    def read_logit_mask(self, source: Any, what: str = "logit_mask") -> Tensor:
        """Return the logit mask of any form of `load_logit_mask`."""
        return load_logit_mask(source, what)


PROMPTS, SAMPLES = PromptsPipeline(), SamplesPipeline()


def preview(source: Any, data: DataConfig, what: str) -> tuple[list[Prompt], bool] | None:
    """Return the first two rows of a source as prompts, as `rlcore.protocols.PreviewPipeline.preview` does."""
    if is_instance(source, "pandas", "DataFrame"):
        rows, names = list(source.head(2).to_dict("records")), [str(name) for name in source.columns]
    elif is_instance(source, "datasets", "Dataset"):
        rows, names = [dict(source[i]) for i in range(min(2, len(source)))], list(source.column_names)
    elif (sources := parse_mixture(source, what)) is not None:
        parts = [preview(each.path, _renaming(data, each), each.what) for each in sources]
        if None in parts:
            return None
        found = [(prompt, is_text) for part, is_text in filter(None, parts) for prompt in part]
        columns = list(dict.fromkeys(name for prompt, _ in found for name in prompt.columns))
        whole = [evolve(prompt, columns={name: prompt.columns.get(name) for name in columns}) for prompt, _ in found]
        return whole[:2], all(is_text for _, is_text in found)
    else:
        files = [str(source)] if isinstance(source, (str, Path)) else file_names(source, what)
        if files is not None and not all(map(_is_small, files)):
            return None
        if files is None and not isinstance(source, (list, tuple)):
            return None
        whole = load_source(source, what)
        rows = whole[:2]
        names = list(dict.fromkeys(key for row in whole if isinstance(row, Mapping) for key in row))
    renamed = {theirs: ours for ours, theirs in data.columns.items()}
    columns = [renamed.get(name, name) for name in names]
    rows = read_types(rename_columns(rows, data.columns, what, needed=()), data.column_types, what)
    if any(isinstance(row, Mapping) and "instruction" in row and row.get(data.prompt_column) is None for row in rows):
        return None  # a text or a message, as the tokenizer has a chat template
    found = [_previewed(row, data, columns, f"{what}[{i}]") for i, row in enumerate(rows)]
    return ([each for each, _ in found], all(is_text for _, is_text in found)) if found else None


def read_as_prompts(source: Any, data: DataConfig, *, what: str) -> list[Prompt]:
    """Return all rows of a source, such as demonstrations, as prompts with their columns, whose tokens are left out.

    A conversation's prompt is what comes before its first answer. Every prompt has the columns of all rows.

    Args:
        source: any source of `load_source` that can be read again, or a mixture.
        data: the options `columns` and `prompt_column`.
        what: the option that holds the source, for errors.

    Raises:
        DataError: the source cannot be read.
    """
    sources = parse_mixture(source, what)
    parts = [("", load_source(source, what))] if sources is None else [
        (each.name, load_part(each, data.columns)) for each in sources
    ]  # fmt: skip
    return rows_as_prompts([(row, name) for name, rows in parts for row in rows], data, what=what)


def rows_as_prompts(rows: Sequence[tuple[Any, str]], data: DataConfig, *, what: str) -> list[Prompt]:
    """Return rows that were read, each with the name of its source, as `read_as_prompts` does."""
    renamed = rename_columns([row for row, _ in rows], data.columns, what, needed=())
    renamed = read_types(renamed, data.column_types, what)
    columns = list(dict.fromkeys(key for row in renamed if isinstance(row, Mapping) for key in row))
    return [
        evolve(_prompt(row, data.prompt_column, columns)[0], source=name)
        for row, (_, name) in zip(renamed, rows, strict=True)
    ]


def _renaming(data: DataConfig, source: Source) -> DataConfig:
    return evolve(data, columns={**data.columns, **source.columns})


def _is_small(name: str) -> bool:
    path = existing_path(name)
    return path is not None and path.is_file() and path.stat().st_size <= LARGEST_FILE


def _previewed(row: Any, data: DataConfig, columns: Sequence[str], where: str) -> tuple[Prompt, bool]:
    """Return a row as the prompt that it will be, as far as that is known without a tokenizer."""
    prompt, is_text = _prompt(row, data.prompt_column, columns)
    if not is_text or data.as_messages:
        prompt, is_text = _prompt(convert_prompt(row, data, where), data.prompt_column, columns)
    if prompt.messages is None:
        return prompt, is_text
    return evolve(prompt, messages=make_chat(where, prompt.messages, data).messages), False


def _prompt(row: Any, column: str, columns: Sequence[str]) -> tuple[Prompt, bool]:
    fields = row if isinstance(row, Mapping) else {}
    content: Any = fields.get(column) if isinstance(row, Mapping) else row
    given: Any = fields.get("messages")
    read = {column}
    if content is None and is_conversation(given):
        content = list(takewhile(lambda message: message["role"] != "assistant", given))
        read.add("messages")
    values = {name: fields.get(name) for name in columns if name not in read}
    if isinstance(content, str):
        return Prompt(content, (0,), values), True
    messages = [dict(message) for message in content or ()] if is_conversation(content) else None
    text = "\n".join(str(message.get("content")) for message in messages or ())
    return Prompt(text, (0,), values, messages), False
