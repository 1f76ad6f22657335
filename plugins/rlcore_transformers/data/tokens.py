"""Tokenise and decode text, with the same BOS and EOS convention for prompts and demonstrations.

A sequence consists of the tokenizer's opening tokens (usually BOS or none), the tokens of its first text, then the
tokens of each further text. The texts are tokenised separately, as in sampling, where the tokens of the prompt are
fixed before the first output token.

Also in this file: tokens at given characters of a text, and the common beginning of token sequences; limits on the
number of tokens: prompts are truncated on either side, samples at the end.
"""

from __future__ import annotations

import itertools
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from rlcore.components import describe_error
from rlcore.data.text import decode
from rlcore.errors import DataError
from rlcore.safe_text import shorten

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from rlcore.settings import DataConfig

__all__ = [
    "closing_tokens",
    "decode",
    "encode",
    "encode_batch",
    "encode_continuations",
    "end_ids",
    "end_of_turn",
    "eos_id",
    "missing_opening",
    "opening_tokens",
    "prepends_space",
    "rendered_opening",
    "shorter",
    "special_ids",
    "truncated",
]


@runtime_checkable
class Truncatable(Protocol):
    """A tokenizer some of whose tokens no truncation may remove, such as those of images."""

    def check_truncated(self, tokens: Sequence[int], kept: Sequence[int], where: str) -> None:
        """Check the tokens of a prompt that are left.

        Args:
            tokens: those of the whole prompt.
            kept: those that are left.
            where: name of the row, and the limit, in errors.

        Raises:
            DataError: a token is missing that may not be.
        """
        ...


def truncated_prompt(tokens: list[int], tokenizer: PreTrainedTokenizerBase, data: DataConfig, where: str) -> list[int]:
    """Return at most `data.max_prompt_tokens` tokens of a prompt, from the side that the options keep, BOS included.

    Raises:
        DataError: the option leaves no room for a prompt, or not for its images.
    """
    limit = data.max_prompt_tokens
    if not limit or len(tokens) <= limit:
        return tokens
    opening = tokens[:1] if tokens[0] == tokenizer.bos_token_id else []
    if limit <= len(opening):
        raise DataError(f"{where}: data.max_prompt_tokens = {limit} leaves room for BOS only; raise it")
    size = limit - len(opening)
    kept = opening + (tokens[-size:] if data.truncation_side == "left" else tokens[len(opening) :][:size])
    if isinstance(tokenizer, Truncatable):
        tokenizer.check_truncated(tokens, kept, f"{where}: data.max_prompt_tokens = {limit}")
    return kept


def shorter(limit: int, max_length: int) -> int:
    """Return the smaller of two limits in tokens, each of which 0 leaves out; 0 if both do."""
    return min(limit or max_length, max_length or limit)


def truncated(tokens: list[int], *, limit: int, max_length: int, where: str) -> list[int]:
    """Return the first `limit` tokens of a sample, or all if `limit` is 0.

    Args:
        tokens: the sample.
        limit: `data.max_sample_tokens`.
        max_length: length of the model's context in tokens; 0 if it is unbounded.
        where: the row, for errors.

    Raises:
        DataError: more than `max_length` tokens are left.
    """
    kept = tokens[:limit] if limit else tokens
    if max_length and len(kept) > max_length:
        raise DataError(
            f"{where}: has {len(kept)} tokens, more than the model's context of {max_length}; shorten it, or set "
            f"data.max_sample_tokens to at most {max_length} to truncate samples on the right"
        )
    return kept


_PROBES = ("a", "0", ".", "the")
_SENTINELS = ("\n", "|", ".", "a", "0")
_UNKNOWN = "give the tokenizer an unknown token (tokenizer.unk_token), or another tokenizer"


def opening_tokens(tokenizer: PreTrainedTokenizerBase, add_bos: bool | None) -> tuple[int, ...]:
    """Return the ids that begin every sequence: the tokenizer's default prefix, with BOS added or removed by `add_bos`.

    Tokens that a tokenizer appends (EOS, [SEP]) are omitted, because a prompt is to be continued.

    Raises:
        DataError: `add_bos` is True, and the tokenizer has no BOS token.
    """
    prefix, _ = _added_tokens(tokenizer)
    if add_bos is None:
        return prefix
    bos = _bos_id(tokenizer) if add_bos else tokenizer.bos_token_id
    without = tuple(token for token in prefix if token != bos)
    return (bos, *without) if add_bos and bos is not None else without


def closing_tokens(tokenizer: PreTrainedTokenizerBase) -> tuple[int, ...]:
    """Return the ids that the tokenizer appends to every text by default; encoders are trained with them."""
    return _added_tokens(tokenizer)[1]


def rendered_opening(tokenizer: PreTrainedTokenizerBase, add_bos: bool | None) -> tuple[int, ...]:
    """Return the ids to add before a rendered conversation: BOS if `add_bos` is True, else none (templates add it)."""
    return (_bos_id(tokenizer),) if add_bos else ()


def eos_id(tokenizer: PreTrainedTokenizerBase, append_eos: bool) -> int | None:
    """Return the id that ends demonstrations; None without `append_eos`.

    Raises:
        DataError: `append_eos` is True, and the tokenizer has no EOS token.
    """
    if not append_eos:
        return None
    if tokenizer.eos_token_id is None:
        raise DataError(
            f"data.append_eos: {_name(tokenizer)} has no EOS token to end demonstrations with; "
            "set tokenizer.eos_token, or data.append_eos=false"
        )
    return int(tokenizer.eos_token_id)


def encode(
    tokenizer: PreTrainedTokenizerBase, texts: Sequence[str], name: Callable[[int], str] = "text {}".format
) -> list[list[int]]:
    """Tokenise texts that begin a sequence, in one call, without special tokens before or after them.

    Args:
        tokenizer: any tokenizer.
        texts: the texts.
        name: returns the name of the text at an index, for errors.

    Raises:
        DataError: the tokenizer cannot encode a text; the message names the first one.
    """
    rows: list[list[int]] = encode_batch(tokenizer, texts, name)["input_ids"]
    return rows


def encode_batch(
    tokenizer: PreTrainedTokenizerBase, texts: Sequence[str], name: Callable[[int], str], *, offsets: bool = False
) -> dict[str, Any]:
    """Tokenise texts as `encode`, and return `input_ids`, and with `offsets` `offset_mapping`."""
    if not texts:
        return {"input_ids": [], "offset_mapping": []}
    try:
        encoded = _encode(tokenizer, texts, offsets=offsets)
    except Exception as error:  # tokenizers raise Exception itself for some texts
        for i, text in enumerate(texts):
            if reason := _refusal(tokenizer, text):
                raise DataError(f"{name(i)}: cannot be tokenised: {reason}; the text is {shorten(text)}") from error
        raise
    if not tokenizer.is_fast:
        for i, row in enumerate(encoded["input_ids"]):
            if None in row:
                raise DataError(
                    f"{name(i)}: cannot be tokenised: part of the text has no token; {_UNKNOWN}; the text is "
                    f"{shorten(texts[i])}"
                )
    return encoded


def _encode(tokenizer: PreTrainedTokenizerBase, texts: Sequence[str], *, offsets: bool = False) -> dict[str, Any]:
    encoded: dict[str, object] = tokenizer(
        list(texts), add_special_tokens=False, return_attention_mask=False, return_token_type_ids=False,
        return_offsets_mapping=offsets, verbose=False,
    )  # fmt: skip
    return encoded


def _refusal(tokenizer: PreTrainedTokenizerBase, text: str) -> str:
    """Return why a tokenizer cannot encode a text; an empty string if it can."""
    surrogate = next((letter for letter in text if "\ud800" <= letter <= "\udfff"), None)
    try:
        _encode(tokenizer, [text])
    except Exception as error:  # noqa: BLE001  as in `encode`
        if surrogate is not None:
            return f"it contains U+{ord(surrogate):04X}, half of a character; repair or remove the row"
        return describe_error(error) + (f"; {_UNKNOWN}" if tokenizer.unk_token is None else "")
    return ""


def missing_opening(tokens: Sequence[int], opening: Sequence[int]) -> list[int]:
    """Return `opening`, or nothing if `tokens` already begin with it, for example because the text contains BOS."""
    return [] if list(tokens[: len(opening)]) == list(opening) else list(opening)


def encode_continuations(
    tokenizer: PreTrainedTokenizerBase, texts: Sequence[str], name: Callable[[int], str] = "text {}".format
) -> list[list[int]]:
    """Tokenise texts that continue another text, so that the concatenated tokens decode to the concatenated texts.

    Llama-like tokenizers insert a space before every text, which is wrong in the middle of a sequence. For these, a
    text is tokenised after a sentinel character, whose tokens are then removed.
    """
    rows = encode(tokenizer, texts, name)
    if not rows or not prepends_space(tokenizer):
        return rows
    remaining = list(range(len(texts)))
    for sentinel in _SENTINELS:
        try:
            (lead,) = encode(tokenizer, [sentinel])
            led = encode(tokenizer, [sentinel + texts[i] for i in remaining])
        except DataError:  # no token for the sentinel, or for a word that begins with it
            continue
        if not lead or tokenizer.unk_token_id in lead or str(tokenizer.decode(lead)).strip(" ") != sentinel:
            continue  # an unknown token, whether the tokenizer declares it or not, stands for the text behind it too
        merged = []
        for i, row in zip(remaining, led, strict=True):
            if row[: len(lead)] == lead:
                rows[i] = row[len(lead) :]
            else:
                merged.append(i)
        remaining = merged
    return rows


def special_ids(tokenizer: PreTrainedTokenizerBase) -> frozenset[int]:
    """Return the ids of special tokens and of tokens added to the vocabulary."""
    return frozenset(tokenizer.all_special_ids) | frozenset(tokenizer.added_tokens_decoder)


def end_ids(tokenizer: PreTrainedTokenizerBase, data: DataConfig) -> frozenset[int]:
    """Return the ids that end a turn: those of the run (`data.end_token_ids`), else the tokenizer's EOS."""
    given = (tokenizer.eos_token_id,) if data.end_token_ids is None else data.end_token_ids
    return frozenset(int(token) for token in given if token is not None)


def end_of_turn(
    tokenizer: PreTrainedTokenizerBase,
    ids: Sequence[int],
    special: frozenset[int],
    ends: frozenset[int] = frozenset(),
) -> int:
    """Return the number of tokens of a rendered turn through the one that ends it.

    Generation stops at that token; a line break, or another end mark, that a chat template writes after it is not
    chosen.

    Args:
        tokenizer: any tokenizer.
        ids: the turn.
        special: the ids of `special_ids`.
        ends: tokens at which generation stops; the turn ends with the first of them, or else with its last special one.
    """
    if (first := next((k for k, token in enumerate(ids) if token in ends), None)) is not None:
        return first + 1
    end = 1 + max((k for k, token in enumerate(ids) if token in special), default=len(ids) - 1)
    is_text = end < len(ids) and "".join(decode(tokenizer, [ids[end:]], skip_special_tokens=False)).strip()
    return len(ids) if is_text else end


def _added_tokens(tokenizer: PreTrainedTokenizerBase) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the ids that a tokenizer adds before a text, and those that it adds after it."""
    for probe in _encodable(tokenizer, _PROBES):
        (plain,) = encode(tokenizer, [probe])
        whole: list[int] = tokenizer(probe)["input_ids"]
        for start in range(len(whole) - len(plain) + 1 if plain else 0):
            if whole[start : start + len(plain)] == plain:
                return tuple(whole[:start]), tuple(whole[start + len(plain) :])
    return (), ()


def prepends_space(tokenizer: PreTrainedTokenizerBase) -> bool:
    """Return whether a tokenizer, like Llama's, inserts a space before every text."""
    probes = list(itertools.islice(_encodable(tokenizer, ("a", "b")), 2))
    if len(probes) < 2:
        return False
    first, second = encode(tokenizer, probes)
    alone, both = decode(tokenizer, [first, first + second], skip_special_tokens=False)
    return both != alone + probes[1]


def _encodable(tokenizer: PreTrainedTokenizerBase, texts: Sequence[str]) -> Iterator[str]:
    """Yield those of `texts` that the tokenizer can encode, then texts of single tokens of its vocabulary."""
    yield from (text for text in texts if not _refusal(tokenizer, text))
    for text in decode(tokenizer, [[token] for token in range(min(len(tokenizer), 32))], skip_special_tokens=True):
        if text.strip() and not _refusal(tokenizer, text):
            yield text


def _bos_id(tokenizer: PreTrainedTokenizerBase) -> int:
    if tokenizer.bos_token_id is None:
        raise DataError(
            f"data.add_bos: {_name(tokenizer)} has no BOS token; set tokenizer.bos_token, or leave data.add_bos out"
        )
    return int(tokenizer.bos_token_id)


def _name(tokenizer: PreTrainedTokenizerBase) -> str:
    return f"the tokenizer {tokenizer.name_or_path!r}" if tokenizer.name_or_path else "the tokenizer"


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


def count_common(one: Sequence[object], other: Sequence[object]) -> int:
    """Return the length of the longest common beginning of two sequences."""
    if other[: len(one)] == one:  # as for most rows; in C
        return len(one)
    return next((k for k, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
