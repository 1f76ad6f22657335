"""Tokens at given characters of a text, and the common beginning of token sequences."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from rlcore.data.tokens import encode, encode_batch

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def encode_places(
    tokenizer: PreTrainedTokenizerBase,
    texts: Sequence[str],
    places: Sequence[Sequence[int]],
    name: Callable[[int], str] = "text {}".format,
) -> list[tuple[list[int], list[int]]]:
    """Tokenise texts as `encode`, and return with each the number of tokens before each of some characters of it.

    A token that spans a place is not counted. Without the offsets of a fast tokenizer, the tokens before a place are
    those in which the text up to there agrees with the whole text.
    """
    encoded = encode_batch(tokenizer, texts, name, offsets=tokenizer.is_fast)
    found = []
    for i, (text, ids, marks) in enumerate(zip(texts, encoded["input_ids"], places, strict=True)):
        if tokenizer.is_fast:
            ends = [end for _, end in encoded["offset_mapping"][i]]
            found.append((ids, [bisect_right(ends, mark) for mark in marks]))
        else:
            heads = encode(tokenizer, [text[:mark] for mark in marks], lambda _: name(i))  # noqa: B023
            found.append((ids, [count_common(head, ids) for head in heads]))
    return found


def count_common(one: Sequence[Any], other: Sequence[Any]) -> int:
    """Return the length of the longest common beginning of two sequences."""
    if other[: len(one)] == one:  # as for most rows; in C
        return len(one)
    return next((k for k, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
