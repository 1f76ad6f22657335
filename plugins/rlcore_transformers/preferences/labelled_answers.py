"""Answers with a verdict each: the pipeline `unpaired`."""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import attrs

from rlcore.errors import DataError
from rlcore.safe_text import shorten
from rlcore.types import Sample, is_conversation
from rlcore_transformers.data.chat import template_variables
from rlcore_transformers.data.mixtures import mixing
from rlcore_transformers.data.rows import ANSWERS, TEMPLATE_KEYS, load_rows, name_unread
from rlcore_transformers.data.sources import BOOLEANS
from rlcore_transformers.preferences.answers import Exchange, number_rows, read_content, tokenise_answers
from rlcore_transformers.preferences.preferences import Pair, read_preference
from rlcore_transformers.preferences.token_rows import are_token_ids, read_token_ids, token_keys

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from rlcore.settings import DataConfig


@attrs.frozen
class LabelledSample:
    """An answer with a verdict.

    Attributes:
        sample: the prompt with the answer.
        label: whether the answer is desirable.
    """

    sample: Sample
    label: bool


@mixing
def build_unpaired(
    source: Any, tokenizer: PreTrainedTokenizerBase, data: DataConfig, *, max_length: int, what: str = "samples"
) -> list[LabelledSample | Pair]:
    """Read and tokenise answers with a verdict each, in their order.

    A row is a mapping with `prompt` (or `data.prompt_column`), `completion` and `label`, true or false; prompt and
    completion are strings, or lists of {role, content} messages. A row with `chosen` and `rejected` gives a pair, as in
    `build_preferences`: its answers are a desirable and an undesirable one. Instead of texts, all rows may have token
    ids, `prompt_ids` and `completion_ids`.

    The arguments are those of `rlcore.protocols.SamplePipeline`.

    Raises:
        DataError: a row is invalid; the message names the first such row and the reason.
    """
    rows = list(number_rows(load_rows(source, tokenizer, data, what, answers=("completion", *ANSWERS)), what))
    answers = next((parts for parts in (("completion",), ANSWERS) if are_token_ids(rows, parts)), None)
    read = [_read_keys(row, data.prompt_column, answers) for _, row in rows]
    name_unread([row for _, row in rows], read, tokenizer, what)
    if answers is not None:
        sequences = read_token_ids(rows, answers, tokenizer, data, max_length=max_length)
    else:
        exchanges = [_read_labelled(row, data.prompt_column, where) for where, row in rows]
        sequences = tokenise_answers(exchanges, tokenizer, data, max_length=max_length)
    return [
        Pair(made[0], made[1]) if len(made) == 2 else LabelledSample(made[0], _read_label(row, where))
        for made, (where, row) in zip(sequences, rows, strict=True)
    ]


build_unpaired.example_rows = [  # type: ignore[attr-defined]  # read by the conformance kit
    {"prompt": prompt, "completion": completion, "label": label}
    for prompt, completion, label in (
        ("ab", "cde", True), ("hello ", "you.", True), ("q", "!", False), ("f", "aa", True), ("z", "a b", False),
        ("long ", "ago it", True), ("m", "nop", False), ("who? ", "me!", True), ("ab", "e", False),
        ("ab", "c" * 12, False),
    )
]  # fmt: skip


def _read_labelled(row: Mapping[str, Any], prompt_column: str, where: str) -> Exchange:
    if row.get("completion") is None and row.get("chosen") is not None:
        return read_preference(row, prompt_column, where)
    prompt, completion = (read_content(row, key, where) for key in (prompt_column, "completion"))
    if isinstance(prompt, str) != isinstance(completion, str):
        raise DataError(f"{where}: one of '{prompt_column}' and 'completion' is a string, the other a list of messages")
    return Exchange(where, prompt, (completion,), template_variables(row, where))


def _read_keys(row: Mapping[str, Any], prompt_column: str, ids: Sequence[str] | None) -> set[str]:
    """Return the keys of a row that are read; a row of preferences has no verdict of its own."""
    if ids is not None:
        return token_keys(row, ("prompt", *ids)) | ({"label"} if len(ids) == 1 else set())
    is_pair = row.get("completion") is None and row.get("chosen") is not None
    answers = ANSWERS if is_pair else ("completion",)
    is_chat = any(is_conversation(row.get(key)) for key in answers)
    return {prompt_column, *answers, *(() if is_pair else ("label",)), *(TEMPLATE_KEYS if is_chat else ())}


def _read_label(row: Mapping[str, Any], where: str) -> bool:
    label = row.get("label")
    label = BOOLEANS.get(label.strip().lower(), label) if isinstance(label, str) else label  # a cell of a table
    if isinstance(label, bool) or label in (0, 1):
        return bool(label)
    raise DataError(f"{where}: 'label' is {shorten(label)}; it must be true for a desirable completion, else false")


def __getattr__(name: str) -> object:
    if name not in ("SEPARATOR", "build_stepwise"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    warnings.warn(f"{name} has moved: import it from rlcore_reward.process_trainer", DeprecationWarning, stacklevel=2)
    return getattr(importlib.import_module("rlcore_reward.process_trainer"), name)
