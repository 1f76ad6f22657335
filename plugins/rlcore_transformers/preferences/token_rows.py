"""Rows of preferences that are token ids already, as other libraries prepare and store them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rlcore.errors import DataError
from rlcore.safe_text import shorten
from rlcore.types import Sample
from rlcore_transformers.preferences.answers import join_answers

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from rlcore.settings import DataConfig

KEYS = {
    "prompt": ("prompt_ids", "prompt_input_ids"),
    "chosen": ("chosen_ids", "chosen_input_ids"),
    "rejected": ("rejected_ids", "rejected_input_ids"),
    "completion": ("completion_ids", "completion_input_ids"),
}
"""Part of a row → its keys, of which the second is that of older versions of TRL."""


def are_token_ids(rows: Sequence[tuple[str, Mapping[str, Any]]], answers: Sequence[str]) -> bool:
    """Return whether rows are token ids: each has them for all `answers`, such as `chosen` and `rejected`.

    Raises:
        DataError: some rows are text, others token ids; the message names the first that differs from the first row.
    """
    kinds = [all(_key(row, part) for part in answers) for _, row in rows]
    for (where, _), kind in zip(rows, kinds, strict=True):
        if kind != kinds[0]:
            names = ["text", "token ids"]
            raise DataError(
                f"{where}: is {names[kind]}, but {rows[0][0]} is {names[not kind]}; write all rows in one form"
            )
    return bool(kinds) and kinds[0]


def read_token_ids(
    rows: Iterable[tuple[str, Mapping[str, Any]]], answers: Sequence[str], tokenizer: PreTrainedTokenizerBase,
    data: DataConfig, *, max_length: int,
) -> list[tuple[Sample, ...]]:  # fmt: skip
    """Return one sample for each answer of each row, whose tokens are taken as they are, without BOS or EOS.

    With the ids of a prompt, those of the answers follow it. Without, they contain it: it is what they begin with, but
    for at least one token of each.

    Args:
        rows: the name of each row, for errors, and the row.
        answers: the parts of a row that are answers.
        tokenizer: the policy's tokenizer.
        data: the options; prompts and answers are truncated as those of texts are.
        max_length: length of the model's context in tokens; 0 if it is unbounded.

    Raises:
        DataError: a row has other values than token ids of the tokenizer.
    """
    made = []
    for where, row in rows:
        ids = [_ids(row, str(_key(row, part)), len(tokenizer), where) for part in answers]
        prompt = []
        if (key := _key(row, "prompt")) is not None:
            prompt = _ids(row, key, len(tokenizer), where)
        elif len(ids) > 1:
            most = max(0, min(map(len, ids)) - 1)
            size = next((k for k in range(most) if len({one[k] for one in ids}) > 1), most)
            prompt, ids = ids[0][:size], [one[size:] for one in ids]
        counted = [(one, len(one)) for one in ids]
        made.append(join_answers(prompt, counted, tokenizer, data, max_length=max_length, where=where))
    return made


def token_keys(row: Mapping[str, Any], parts: Iterable[str]) -> set[str]:
    """Return the keys of a row that hold the token ids of some parts."""
    return {key for part in parts if (key := _key(row, part)) is not None}


def _key(row: Mapping[str, Any], part: str) -> str | None:
    return next((key for key in KEYS[part] if row.get(key) is not None), None)


def _ids(row: Mapping[str, Any], key: str, size: int, where: str) -> list[int]:
    ids = row[key].tolist() if hasattr(row[key], "tolist") else row[key]  # of an array or a tensor
    if not isinstance(ids, list | tuple) or not all(type(each) is int and 0 <= each < size for each in ids):
        raise DataError(
            f"{where}: '{key}' is {shorten(ids)}; it must be a list of token ids of the policy's tokenizer, from 0 to "
            f"{size - 1}"
        )
    return list(ids)
