"""Ids of the tokens that options of samplers name, checked against a tokenizer and a vocabulary.

Also in this file: detect the token that completes a stop sequence.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import attrs
import torch
from torch import Tensor

from rlcore.errors import ConfigError
from rlcore.types import tensor_on
from rlcore_transformers.data.tokens import decode, encode_continuations
from rlcore_transformers.sampling.token_options import Token, TokenOptions

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


NUM_SHOWN = 6
"""Most tokens of a text that an error lists."""


@attrs.frozen
class TokenIds:
    """The tokens of the options `logit_bias`, `allowed_tokens` and `forbidden_tokens`, by their ids.

    Attributes:
        bias: what is added to the logit of each token.
        allowed: the only tokens that are sampled; None if all are.
        forbidden: tokens that are not sampled.
    """

    bias: Mapping[int, float]
    allowed: frozenset[int] | None
    forbidden: frozenset[int]

    @classmethod
    def read(cls, options: TokenOptions, tokenizer: Any) -> TokenIds:
        """Look up the tokens that options name.

        Raises:
            ConfigError: a text is not that of one token, two names are those of one token, or a token is both allowed
                and forbidden.
        """
        biased = _ids("logit_bias", [token for token, _ in options.biases], tokenizer)
        bias = {token: number for token, (_, number) in zip(biased, options.biases, strict=True)}
        allowed = options.allowed_tokens
        permitted = None if allowed is None else frozenset(_ids("allowed_tokens", allowed, tokenizer))
        forbidden = _ids("forbidden_tokens", options.forbidden_tokens, tokenizer)
        if both := [token for token in forbidden if permitted is not None and token in permitted]:
            raise ConfigError(
                f"sampler.forbidden_tokens: token {_shown(both[0], tokenizer)} is in allowed_tokens too; leave it "
                "out of one"
            )
        return cls(bias, permitted, frozenset(forbidden))

    @property
    def is_empty(self) -> bool:
        """Whether the options name no tokens."""
        return not self.bias and not self.excludes

    @property
    def excludes(self) -> bool:
        """Whether some tokens are never sampled."""
        return self.allowed is not None or bool(self.forbidden)

    def may_be_sampled(self, token: int) -> bool:
        """Return whether a token is allowed and not forbidden."""
        return token not in self.forbidden and (self.allowed is None or token in self.allowed)

    def offsets(self, vocabulary: int, device: torch.device) -> Tensor:
        """Return what is added to the logits of each token, -inf for those that are not sampled: float[V].

        Raises:
            ConfigError: an id is not in the vocabulary, or no token may be sampled.
        """
        named = {"logit_bias": self.bias, "allowed_tokens": self.allowed or (), "forbidden_tokens": self.forbidden}
        for option, tokens in named.items():
            if wrong := [token for token in tokens if not 0 <= token < vocabulary]:
                raise ConfigError(
                    f"sampler.{option}: {wrong[0]} is no id of the model's vocabulary of {vocabulary} tokens, 0 to "
                    f"{vocabulary - 1}"
                )
        offsets = torch.zeros(vocabulary, device=device)
        if self.bias:
            offsets[tensor_on(device, list(self.bias))] = torch.tensor(list(self.bias.values()), device=device)
        if self.allowed is not None:
            excluded = torch.ones(vocabulary, dtype=torch.bool, device=device)
            excluded[tensor_on(device, sorted(self.allowed))] = False
            offsets = offsets.masked_fill(excluded, float("-inf"))
        if self.forbidden:
            offsets[tensor_on(device, sorted(self.forbidden))] = float("-inf")
        if not bool((offsets > float("-inf")).any()):
            raise ConfigError(
                f"sampler.forbidden_tokens: all {vocabulary} tokens of the vocabulary are forbidden; leave some out"
            )
        return offsets


def _ids(option: str, tokens: Sequence[Token], tokenizer: Any) -> list[int]:
    """Return the ids of tokens that an option names."""
    texts = [token for token in tokens if isinstance(token, str)]
    found = encode_continuations(tokenizer, texts, lambda i: f"sampler.{option}: {texts[i]!r}")
    by_text = {text: _only(option, text, ids, tokenizer) for text, ids in zip(texts, found, strict=True)}
    ids = [by_text[token] if isinstance(token, str) else token for token in tokens]
    first: dict[int, Token] = {}
    for token, name in zip(ids, tokens, strict=True):
        if token in first:
            raise ConfigError(f"sampler.{option}: {first[token]!r} and {name!r} are the same token; name it once")
        first[token] = name
    return ids


def _only(option: str, text: str, ids: Sequence[int], tokenizer: Any) -> int:
    """Return the only token of a text."""
    is_unknown = list(ids) == [tokenizer.unk_token_id] and text != tokenizer.unk_token
    if len(ids) == 1 and not is_unknown:
        return ids[0]
    if is_unknown or not ids:
        found = "is no token, and is not made of any"
    else:
        parts = ", ".join(_shown(token, tokenizer) for token in ids[:NUM_SHOWN])
        found = f"is {len(ids)} tokens, {parts}{', ...' if len(ids) > NUM_SHOWN else ''}"
    hint = f"; an id is written as a number, {text}" if text.isdecimal() else ""
    raise ConfigError(
        f"sampler.{option}: the text {text!r} {found}, of this tokenizer; give the text of one token, with the space "
        f"before it if it has one, or its id{hint}"
    )


def _shown(token: int, tokenizer: Any) -> str:
    return f"{token} ({decode(tokenizer, [[token]], skip_special_tokens=False)[0]!r})"


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
