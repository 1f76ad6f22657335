"""The one BOS and EOS convention that prompts and demonstrations share, and the tokens of a text that goes on another.

A sequence is: the tokenizer's opening tokens (usually BOS or nothing), the tokens of its first text, then the tokens of
each further text. Texts are tokenised apart, because the policy, too, has read the tokens of a prompt before it chooses
any of its own.
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
    """Return the ids that begin every sequence: the tokenizer's habit, with BOS added or taken away if that is said.

    What a tokenizer would put at the end (EOS, [SEP]) is left out, since a prompt has to be continued.

    Raises:
        DataError: BOS is asked of a tokenizer that has none.
    """
    habit, _ = _habits(tokenizer)
    if add_bos is None:
        return habit
    bos = _bos_id(tokenizer) if add_bos else tokenizer.bos_token_id
    without = tuple(token for token in habit if token != bos)
    return (bos, *without) if add_bos and bos is not None else without


def closing_tokens(tokenizer: PreTrainedTokenizerBase) -> tuple[int, ...]:
    """Return the ids that the tokenizer ends every text with by habit: what encoders are used to reading last."""
    return _habits(tokenizer)[1]


def rendered_opening(tokenizer: PreTrainedTokenizerBase, add_bos: bool | None) -> tuple[int, ...]:
    """Return the ids that begin every text a chat template wrote: none, for templates write BOS, unless it is asked."""
    return (_bos_id(tokenizer),) if add_bos else ()


def eos_id(tokenizer: PreTrainedTokenizerBase, append_eos: bool) -> int | None:
    """Return the id that ends demonstrations, None if none shall.

    Raises:
        DataError: EOS is asked of a tokenizer that has none.
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
    """Tokenise texts that begin a sequence, all at once, without the tokens that open or close it."""
    if not texts:
        return []
    encoded = tokenizer(
        list(texts), add_special_tokens=False, return_attention_mask=False, return_token_type_ids=False, verbose=False
    )
    rows: list[list[int]] = encoded["input_ids"]
    return rows


def missing_opening(tokens: Sequence[int], opening: Sequence[int]) -> list[int]:
    """Return what has to go before `tokens`: `opening`, unless they begin with it, as where the user wrote BOS out."""
    return [] if list(tokens[: len(opening)]) == list(opening) else list(opening)


def encode_continuations(tokenizer: PreTrainedTokenizerBase, texts: Sequence[str]) -> list[list[int]]:
    """Tokenise texts that go on another, so that the tokens of both, side by side, spell both texts side by side.

    Llama-like tokenizers put a space before whatever they read, which is wrong in the middle of a sequence. There a
    text is read behind a character whose tokens are known and then dropped.
    """
    rows = encode(tokenizer, texts)
    if not rows or not _puts_space_first(tokenizer):
        return rows
    waiting = list(range(len(texts)))
    for sentinel in _SENTINELS:
        (lead,) = encode(tokenizer, [sentinel])
        if not lead or tokenizer.unk_token_id in lead:
            continue
        merged = []
        for i, row in zip(waiting, encode(tokenizer, [sentinel + texts[i] for i in waiting]), strict=True):
            if row[: len(lead)] == lead:
                rows[i] = row[len(lead) :]
            else:
                merged.append(i)
        waiting = merged
    return rows


def decode(
    tokenizer: PreTrainedTokenizerBase, rows: Sequence[Sequence[int]], *, skip_special_tokens: bool
) -> list[str]:
    """Spell token ids out, adding and removing nothing for the sake of looks."""
    if not rows:
        return []
    ids = [list(row) for row in rows]
    if _is_all_backend(tokenizer):  # in less than half the time: Python then looks at no number
        return list(tokenizer.backend_tokenizer.decode_batch(ids, skip_special_tokens=skip_special_tokens))
    return list(tokenizer.decode(ids, skip_special_tokens=skip_special_tokens, clean_up_tokenization_spaces=False))


def _is_all_backend(tokenizer: PreTrainedTokenizerBase) -> TypeGuard[PreTrainedTokenizerFast]:
    """Tell whether a tokenizer's class leaves it to its backend how tokens are spelt."""
    from transformers import PreTrainedTokenizerFast

    kind = type(tokenizer)
    return (
        isinstance(tokenizer, PreTrainedTokenizerFast)
        and kind.decode is PreTrainedTokenizerFast.decode
        and kind._decode is PreTrainedTokenizerFast._decode  # noqa: SLF001  what classes with a spelling of their own override
    )


def special_ids(tokenizer: PreTrainedTokenizerBase) -> frozenset[int]:
    """Return the ids of tokens that stand for no text of their own: special ones and those added to the vocabulary."""
    return frozenset(tokenizer.all_special_ids) | frozenset(tokenizer.added_tokens_decoder)


def _habits(tokenizer: PreTrainedTokenizerBase) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the ids a tokenizer puts before a text, and those it puts behind it."""
    for probe in _PROBES:
        (plain,) = encode(tokenizer, [probe])
        whole: list[int] = tokenizer(probe)["input_ids"]
        for start in range(len(whole) - len(plain) + 1 if plain else 0):
            if whole[start : start + len(plain)] == plain:
                return tuple(whole[:start]), tuple(whole[start + len(plain) :])
    return (), ()


def _puts_space_first(tokenizer: PreTrainedTokenizerBase) -> bool:
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
