"""Notice the tokens that end a continuation: EOS, or the last token of a stop sequence."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from rlcore.data.tokens import decode
from rlcore.errors import ConfigError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

SLACK = 8
"""Tokens decoded besides those a stop sequence can span, for tokens without text and halves of characters."""
REPLACEMENT = "\ufffd"
"""What a tokenizer decodes a fragment of a character to."""


class StopSequences:
    """Recognise strings in a continuation as they are completed, wherever tokens begin and end.

    Only the newest tokens are decoded, and only where the last one may complete a stop sequence; what a token may
    complete is worked out once per token. Special tokens are decoded too, so that their text can be a stop sequence.

    Args:
        tokenizer: decodes.
        sequences: strings, one at least.

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
            window: returns, of a row, the last `tail` tokens of its continuation (or all, if there are no more) and
                before them a few of what they follow, in which nothing is looked for.
        """
        return [row for row, token in enumerate(newest) if self._is_candidate(token) and self._is_in(*window(row))]

    def _is_in(self, context: list[int], tokens: list[int]) -> bool:
        before, whole, alone = decode(self._tokenizer, [context, context + tokens, tokens], skip_special_tokens=False)
        text = whole[len(before) :] if whole.startswith(before) else alone
        return any(sequence in text for sequence in self._sequences)

    def _is_candidate(self, token: int) -> bool:
        known = self._may_complete.get(token)
        if known is None:
            # Twice, for a space that a tokenizer drops at the beginning of a text.
            (text,) = decode(self._tokenizer, [[token, token]], skip_special_tokens=False)
            known = self._may_complete[token] = REPLACEMENT in text or not self._last_characters.isdisjoint(text)
        return known
