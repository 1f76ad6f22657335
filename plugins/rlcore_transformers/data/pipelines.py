"""The pipelines `prompts` and `samples`: functions that tokenise, with the ways in which they read sources.

Also in this file: rewards of demonstrations, assigned to their tokens; load a logit mask: which tokens may follow
each token, as a boolean tensor.
"""

from __future__ import annotations

import decimal
import math
import numbers
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from rlcore.components import describe_error
from rlcore.config import evolve
from rlcore.config.options import from_json
from rlcore.config.yaml_files import existing_path
from rlcore.data.user_code import load_reference
from rlcore.errors import DataError, InputsError
from rlcore.safe_text import shorten
from rlcore.types import Prompt, Sample, SampleReward, is_conversation
from rlcore_transformers.data.chat import make_chat
from rlcore_transformers.data.files import is_instance, is_stream
from rlcore_transformers.data.mixtures import MixedStream, mixing, open_mixed_stream
from rlcore_transformers.data.prompts import build_prompts
from rlcore_transformers.data.rows import convert_prompt, rename_columns
from rlcore_transformers.data.samples import build_samples
from rlcore_transformers.data.sources import Source, file_names, load_part, load_source, parse_mixture, read_types
from rlcore_transformers.data.streams import SampleStream, open_stream

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from rlcore.settings import DataConfig

MASK_FORMS = (
    "a tensor or array of booleans, nested lists, a function that returns one, 'module:function', or the path of a "
    ".json or .npy file"
)


def load_logit_mask(source: object, what: str = "logit_mask") -> Tensor:
    """Load a logit mask of any form.

    Args:
        source: V rows of V booleans (or 0 and 1), in one of FORMS.
        what: the option that holds it, for errors.

    Returns:
        bool[V, V] on the CPU; entry [i, j] is True if token j may follow token i.

    Raises:
        DataError: the source cannot be read, is not square, or contains other values than 0 and 1.
    """
    if isinstance(source, (str, Path)):
        source = _load_named(str(source), what)
    elif callable(source) and not isinstance(source, Tensor):
        source = _call(source, what)
    table = _table(source, what)
    if table.dim() != 2 or table.shape[0] != table.shape[1] or not len(table):
        raise DataError(
            f"{what}: has the shape {tuple(table.shape)}; it must have one row and one column per token of the model"
        )
    if table.dtype == torch.bool:
        return table
    wrong = ((table != 0) & (table != 1)).nonzero()
    if len(wrong):
        row, column = wrong[0].tolist()
        raise DataError(
            f"{what}[{row}, {column}] = {table[row, column].item()!r}: must be True (1) where token {column} may "
            f"follow token {row}, else False (0); a table of logits to add is not supported"
        )
    return table.bool()


def _load_named(name: str, what: str) -> object:
    path = existing_path(name) or Path(name)
    readers: dict[str, Callable[[Path], object]] = {".json": _read_json, ".npy": _read_npy}
    if path.suffix.lower() in readers:
        try:
            return readers[path.suffix.lower()](path)
        except (FileNotFoundError, NotADirectoryError):
            raise DataError(f"{what} = {name!r}: there is no such file: {path.absolute()}") from None
        except (OSError, ValueError) as error:
            raise DataError(f"{what} = {name!r}: cannot be read: {error}") from error
    if ":" not in name:
        raise DataError(f"{what} = {name!r}: is neither a .json or .npy file nor 'module:function'; pass {MASK_FORMS}")
    target = load_reference(name, what)
    return _call(target, f"{what} = {name!r}") if callable(target) and not isinstance(target, Tensor) else target


def _read_json(path: Path) -> object:
    return from_json(path.read_text(encoding="utf-8-sig"))


def _read_npy(path: Path) -> object:
    return np.load(path, allow_pickle=False)


def _call(function: Callable[[], object], what: str) -> Any:
    try:
        return function()
    except (Exception, SystemExit) as error:  # a user's function may raise anything
        raise DataError(f"{what}: the function raised {describe_error(error)}") from error


def _table(mask: object, what: str) -> Tensor:
    if isinstance(mask, Tensor):
        return mask.detach().cpu()
    if isinstance(mask, Sequence) and not isinstance(mask, str):
        for i, row in enumerate(mask):
            if not isinstance(row, (Sequence, np.ndarray, Tensor)) or len(row) != len(mask):
                is_row = isinstance(row, (Sequence, np.ndarray, Tensor))
                problem = f"has {len(row)} entries" if is_row else f"is {shorten(row, 60)}"
                raise DataError(f"{what}[{i}]: {problem}; each of the {len(mask)} rows must have {len(mask)} entries")
    try:
        return torch.from_numpy(np.array(mask))
    except (TypeError, ValueError) as error:
        raise DataError(f"{what}: is {shorten(mask, 60)} ({type(mask).__name__}); pass {MASK_FORMS}") from error


FORMS = (
    "a reward is a number for the whole sample, a list with one number for each output, or a list with one for each "
    "token the policy should choose, EOS included"
)


def build_sample_rewards(
    rows: Sequence[object], samples: Sequence[Sample], what: str = "rewards"
) -> list[SampleReward]:
    """Assign the rewards of demonstrations, in the samples' order, to their tokens.

    * A number is assigned to the last chosen token, EOS included.
    * One number for each output of a dialogue is assigned to the last token of that output. An output is a run of
      chosen tokens.
    * One number for each chosen token is assigned to that token.

    A row may also be a mapping with one of these under `reward`, or a text of one, such as a cell of a table. If a
    sample was truncated on the right, a number for the whole sample is assigned to the last remaining chosen token.

    Args:
        rows: one for each demonstration, such as `load_source` returns.
        samples: the tokenised demonstrations.
        what: the option that holds the rewards, for errors.

    Raises:
        InputsError: there are more or fewer rewards than samples.
        DataError: a reward is invalid; the message names the first one and the reason.
    """
    if len(rows) != len(samples):
        raise InputsError(
            f"{what}: has {len(rows)} entries for {len(samples)} samples; pass one for each, in their order"
        )
    return [_place(row, sample, f"{what}[{i}]") for i, (row, sample) in enumerate(zip(rows, samples, strict=True))]


def _place(row: object, sample: Sample, where: str) -> SampleReward:
    values = _read(row, where)
    chosen = [t for t, marked in enumerate(sample.action_mask) if marked]
    ends = [t for t in chosen if not any(sample.action_mask[t + 1 : t + 2])]
    if not isinstance(values, list):
        values, indices = [values], chosen[-1:]
    elif len(values) == len(ends):
        indices = ends
    elif len(values) == len(chosen):
        indices = chosen
    else:
        cut = "; it was truncated to data.max_sample_tokens, and so must be its rewards" if not sample.ended else ""
        raise DataError(
            f"{where}: has {len(values)} numbers, but the sample has {len(ends)} output(s) of {len(chosen)} tokens in "
            f"all, EOS included{cut}; pass one number for the whole, {len(ends)} for the outputs, or {len(chosen)} for "
            "the tokens"
        )
    rewards = [0.0] * len(sample.tokens)
    for index, reward in zip(indices, values, strict=True):
        rewards[index] = reward
    return SampleReward(tuple(rewards), dense=len(values) > 1)


def _read(row: object, where: str) -> float | list[float]:
    if isinstance(row, Mapping):
        if "reward" not in row:
            raise DataError(f"{where}: has no key 'reward', only {', '.join(map(repr, row)) or 'none'}; {FORMS}")
        row = row["reward"]
    if isinstance(row, str):  # a cell of a table
        with suppress(ValueError):
            row = from_json(row)
    if isinstance(row, (torch.Tensor, np.ndarray, np.generic)):
        row = row.tolist()
    if isinstance(row, (list, tuple)):
        return [_number(value, f"{where}[{k}]") for k, value in enumerate(row)]
    return _number(row, where)


def _number(value: object, where: str) -> float:
    if isinstance(value, (torch.Tensor, np.ndarray, np.generic)) and np.ndim(value) == 0:
        value = value.item()
    if not isinstance(value, (numbers.Real, decimal.Decimal)):
        raise DataError(f"{where}: is {value!r:.80} ({type(value).__name__}), not a number; {FORMS}")
    try:
        number = float(value)
    except (OverflowError, ValueError):  # an integer too large for a float, a signalling NaN
        number = math.nan
    if not abs(number) <= torch.finfo(torch.float32).max:
        raise DataError(f"{where}: is {value}, not a finite number; pass a finite one, or remove the sample")
    return number


LARGEST_FILE = 64 * 2**20
"""Files of prompts that are larger are not read for a preview, in bytes."""


class PromptsPipeline:
    """`build_prompts`, with a preview of its first rows."""

    def __call__(
        self,
        source: object,
        tokenizer: PreTrainedTokenizerBase,
        data: DataConfig,
        *,
        max_length: int,
        what: str = "prompts",
    ) -> list[Prompt]:
        """Read and tokenise prompts."""
        return mixing(build_prompts)(source, tokenizer, data, max_length=max_length, what=what)

    def preview(self, source: object, data: DataConfig, *, what: str) -> tuple[list[Prompt], bool] | None:
        """Return the first two rows of a source; None if reading it takes long, or can be done only once."""
        return preview(source, data, what)


class SamplesPipeline:
    """`build_samples`, which also opens streams and reads the rewards of samples."""

    def __call__(
        self,
        source: object,
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
        source: object,
        data: DataConfig,
        *,
        seed: int,
        read: Callable[[Sequence[Any], str], Sequence[object]],
        what: str = "samples",
    ) -> SampleStream | MixedStream | None:
        """Return the stream of a source of the `datasets` library, a file, a name on the hub, or a mixture of them."""
        if (sources := parse_mixture(source, what)) is not None:
            is_whole = not (data.streaming or any(is_stream(each.path) for each in sources))
            return None if is_whole else open_mixed_stream(sources, data, seed=seed, read=read)
        rows = open_stream(source, data, seed=seed, what=what)
        return None if rows is None else SampleStream(rows, read, what)

    def read_rewards(
        self, source: object, samples: Sequence[Sample], columns: Mapping[str, str], *, what: str
    ) -> list[SampleReward]:
        """Return the rewards of any source of `load_source`, with columns renamed, on the tokens of their samples."""
        rows = rename_columns(load_source(source, what), columns, what, needed=list(columns))
        return build_sample_rewards(rows, samples, what)

    def read_logit_mask(self, source: object, what: str = "logit_mask") -> Tensor:
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


def read_as_prompts(source: object, data: DataConfig, *, what: str) -> list[Prompt]:
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


def rows_as_prompts(rows: Sequence[tuple[object, str]], data: DataConfig, *, what: str) -> list[Prompt]:
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


def _previewed(row: object, data: DataConfig, columns: Sequence[str], where: str) -> tuple[Prompt, bool]:
    """Return a row as the prompt that it will be, as far as that is known without a tokenizer."""
    prompt, is_text = _prompt(row, data.prompt_column, columns)
    if not is_text or data.as_messages:
        prompt, is_text = _prompt(convert_prompt(row, data, where), data.prompt_column, columns)
    if prompt.messages is None:
        return prompt, is_text
    return evolve(prompt, messages=make_chat(where, prompt.messages, data).messages), False


def _prompt(row: object, column: str, columns: Sequence[str]) -> tuple[Prompt, bool]:
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
