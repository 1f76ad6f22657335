"""Detect the token that completes a stop sequence."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from rlcore.errors import ConfigError
from rlcore_transformers.data.tokens import decode

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

SLACK = 8
"""Tokens decoded beyond the span of a stop sequence, for tokens without text and parts of characters."""
REPLACEMENT = "\ufffd"
"""A tokenizer decodes an incomplete character to this."""


class StopSequences:
    """Detects stop sequences in a continuation, independent of token boundaries.

    Only the newest tokens are decoded, and only if the last one can complete a stop sequence; this property is cached
    per token. Special tokens are decoded too, so that their text can be a stop sequence.

    Args:
        tokenizer: the policy's tokenizer.
        sequences: at least one string.

    Raises:
        ConfigError: a string is empty.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, sequences: Sequence[str]) -> None:
        if "" in sequences:
            raise ConfigError(f"gen.stop_sequences = {list(sequences)}: '' would end every continuation; remove it")
        self._tokenizer, self._sequences = tokenizer, tuple(sequences)
        self._last_characters = {sequence[-1] for sequence in sequences}
        self._may_complete: dict[int, bool] = {}
        self.tail = max(len(sequence.encode()) for sequence in sequences) + SLACK

    def completed(self, newest: Sequence[int], window: Callable[[int], tuple[list[int], list[int]]]) -> list[int]:
        """Return the rows whose newest token completed a stop sequence.

        Args:
            newest: the newest token of each row.
            window: returns, for a row, a few context tokens, which are not searched, and the last `tail` tokens of the
                continuation (or all, if there are fewer).
        """
        return [row for row, token in enumerate(newest) if self._is_candidate(token) and self._is_in(*window(row))]

    def _is_in(self, context: list[int], tokens: list[int]) -> bool:
        before, whole, alone = decode(self._tokenizer, [context, context + tokens, tokens], skip_special_tokens=False)
        text = whole[len(before) :] if whole.startswith(before) else alone
        return any(sequence in text for sequence in self._sequences)

    def _is_candidate(self, token: int) -> bool:
        is_candidate = self._may_complete.get(token)
        if is_candidate is None:
            # Decoded twice in a row, because some tokenizers drop a space at the beginning of a text.
            (text,) = decode(self._tokenizer, [[token, token]], skip_special_tokens=False)
            is_candidate = REPLACEMENT in text or not self._last_characters.isdisjoint(text)
            self._may_complete[token] = is_candidate
        return is_candidate
