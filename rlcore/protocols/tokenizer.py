"""A tokenizer, as the core calls it."""

from __future__ import annotations

from typing import Protocol


class Tokenizer(Protocol):
    """What the core calls of a model's tokenizer: the text of sampled tokens, for reward functions and logs.

    The tokenizers of `transformers` have this method. Pipelines and architectures may require more of a tokenizer; the
    built-in ones require one of `transformers`.
    """

    def decode(
        self, token_ids: list[list[int]], *, skip_special_tokens: bool, clean_up_tokenization_spaces: bool
    ) -> str | list[str]:
        """Return a list with the text of each sequence of token ids.

        Args:
            token_ids: one or more sequences.
            skip_special_tokens: leave out special tokens, such as EOS.
            clean_up_tokenization_spaces: always False; the text is that of the tokens, with all of their spaces.
        """
        ...
