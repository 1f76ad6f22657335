"""Tokenise and decode text, with the same BOS and EOS convention for prompts and demonstrations.

A sequence consists of the tokenizer's opening tokens (usually BOS or none), the tokens of its first text, then the
tokens of each further text. The texts are tokenised separately, as in sampling, where the tokens of the prompt are
fixed before the first output token.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeGuard

from rlcore.errors import DataError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast

_PROBES = ("a", "0", ".", "the")
_SENTINELS = ("\n", "|", ".", "a", "0")


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


def encode(tokenizer: PreTrainedTokenizerBase, texts: Sequence[str]) -> list[list[int]]:
    """Tokenise texts that begin a sequence, in one call, without special tokens before or after them."""
    if not texts:
        return []
    encoded = tokenizer(
        list(texts), add_special_tokens=False, return_attention_mask=False, return_token_type_ids=False, verbose=False
    )
    rows: list[list[int]] = encoded["input_ids"]
    return rows


def missing_opening(tokens: Sequence[int], opening: Sequence[int]) -> list[int]:
    """Return `opening`, or nothing if `tokens` already begin with it, for example because the text contains BOS."""
    return [] if list(tokens[: len(opening)]) == list(opening) else list(opening)


def encode_continuations(tokenizer: PreTrainedTokenizerBase, texts: Sequence[str]) -> list[list[int]]:
    """Tokenise texts that continue another text, so that the concatenated tokens decode to the concatenated texts.

    Llama-like tokenizers insert a space before every text, which is wrong in the middle of a sequence. For these, a
    text is tokenised after a sentinel character, whose tokens are then removed.
    """
    rows = encode(tokenizer, texts)
    if not rows or not _prepends_space(tokenizer):
        return rows
    remaining = list(range(len(texts)))
    for sentinel in _SENTINELS:
        (lead,) = encode(tokenizer, [sentinel])
        if not lead or tokenizer.unk_token_id in lead:
            continue
        merged = []
        for i, row in zip(remaining, encode(tokenizer, [sentinel + texts[i] for i in remaining]), strict=True):
            if row[: len(lead)] == lead:
                rows[i] = row[len(lead) :]
            else:
                merged.append(i)
        remaining = merged
    return rows


def decode(
    tokenizer: PreTrainedTokenizerBase, rows: Sequence[Sequence[int]], *, skip_special_tokens: bool
) -> list[str]:
    """Decode token ids, without cleaning up spaces."""
    if not rows:
        return []
    ids = [list(row) for row in rows]
    if _is_all_backend(tokenizer):  # less than half the time: no Python loop over ids
        return list(tokenizer.backend_tokenizer.decode_batch(ids, skip_special_tokens=skip_special_tokens))
    return list(tokenizer.decode(ids, skip_special_tokens=skip_special_tokens, clean_up_tokenization_spaces=False))


def _is_all_backend(tokenizer: PreTrainedTokenizerBase) -> TypeGuard[PreTrainedTokenizerFast]:
    """Return whether a tokenizer's class does not override the backend's decoding."""
    from transformers import PreTrainedTokenizerFast

    kind = type(tokenizer)
    return (
        isinstance(tokenizer, PreTrainedTokenizerFast)
        and kind.decode is PreTrainedTokenizerFast.decode
        and kind._decode is PreTrainedTokenizerFast._decode  # noqa: SLF001  the method that such classes override
    )


def special_ids(tokenizer: PreTrainedTokenizerBase) -> frozenset[int]:
    """Return the ids of special tokens and of tokens added to the vocabulary."""
    return frozenset(tokenizer.all_special_ids) | frozenset(tokenizer.added_tokens_decoder)


def _added_tokens(tokenizer: PreTrainedTokenizerBase) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the ids that a tokenizer adds before a text, and those that it adds after it."""
    for probe in _PROBES:
        (plain,) = encode(tokenizer, [probe])
        whole: list[int] = tokenizer(probe)["input_ids"]
        for start in range(len(whole) - len(plain) + 1 if plain else 0):
            if whole[start : start + len(plain)] == plain:
                return tuple(whole[:start]), tuple(whole[start + len(plain) :])
    return (), ()


def _prepends_space(tokenizer: PreTrainedTokenizerBase) -> bool:
    first, second = encode(tokenizer, ["a", "b"])
    alone, both = decode(tokenizer, [first, first + second], skip_special_tokens=False)
    return both != alone + "b"


def _bos_id(tokenizer: PreTrainedTokenizerBase) -> int:
    if tokenizer.bos_token_id is None:
        raise DataError(
            f"data.add_bos: {_name(tokenizer)} has no BOS token; set tokenizer.bos_token, or leave data.add_bos out"
        )
    return int(tokenizer.bos_token_id)


def _name(tokenizer: PreTrainedTokenizerBase) -> str:
    return f"the tokenizer {tokenizer.name_or_path!r}" if tokenizer.name_or_path else "the tokenizer"
