"""Limits on the number of tokens: prompts are truncated on either side, samples at the end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from rlcore.errors import DataError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from rlcore.settings import DataConfig


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
