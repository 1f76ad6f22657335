"""Ids of the tokens that options of samplers name, checked against a tokenizer and a vocabulary."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import attrs
import torch
from torch import Tensor

from rlcore.errors import ConfigError
from rlcore.types import tensor_on
from rlcore_transformers.data.tokens import decode, encode_continuations
from rlcore_transformers.sampling.token_options import Token, TokenOptions

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
