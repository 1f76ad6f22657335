"""Tokens at given characters of a text, and the common beginning of token sequences."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from rlcore_transformers.data.tokens import encode_batch, encode_continuations, prepends_space

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def encode_places(
    tokenizer: PreTrainedTokenizerBase,
    texts: Sequence[str],
    places: Sequence[Sequence[int]],
    name: Callable[[int], str] = "text {}".format,
) -> list[tuple[list[int], list[int]]]:
    """Tokenise texts as `encode_continuations`, and return with each the number of tokens before some characters of it.

    A token that spans a place is not counted. Without the offsets of a fast tokenizer, the tokens before a place are
    those in which the text up to there agrees with the whole text.
    """
    if tokenizer.is_fast and not prepends_space(tokenizer):
        encoded = encode_batch(tokenizer, texts, name, offsets=True)
        ends = [[end for _, end in offsets] for offsets in encoded["offset_mapping"]]
        counts = [[bisect_right(row, mark) for mark in marks] for row, marks in zip(ends, places, strict=True)]
        return list(zip(encoded["input_ids"], counts, strict=True))
    rows = encode_continuations(tokenizer, texts, name)
    flat = [(i, text[:mark]) for i, text in enumerate(texts) for mark in places[i]]
    heads = iter(encode_continuations(tokenizer, [head for _, head in flat], lambda k: name(flat[k][0])))
    return [(ids, [count_common(next(heads), ids) for _ in marks]) for ids, marks in zip(rows, places, strict=True)]


def count_common(one: Sequence[Any], other: Sequence[Any]) -> int:
    """Return the length of the longest common beginning of two sequences."""
    if other[: len(one)] == one:  # as for most rows; in C
        return len(one)
    return next((k for k, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
