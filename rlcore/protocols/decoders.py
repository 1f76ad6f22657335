"""How a policy decodes text, token by token."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol, runtime_checkable

import attrs
import torch
from torch import Tensor


class Decoder(Protocol):
    """A batch of sequences that is decoded token by token, with its key-value cache."""

    def start(self) -> DecodeStep:
        """Encode the prompts and return the outputs for the first new tokens."""
        ...

    def step(self, tokens: Tensor) -> DecodeStep:
        """Append one token to every sequence and return the outputs for the next.

        Args:
            tokens: long[B], sampled from the logits of the previous step.
        """
        ...

    def keep(self, rows: Tensor) -> None:
        """Drop all other sequences from the batch, for example those that have ended.

        Args:
            rows: long[K], ascending indices into the current batch.
        """
        ...


@attrs.frozen(eq=False)
class DecodeStep:
    """A decoder's outputs after one token of each sequence.

    Attributes:
        logits: float[B, V], of the next token.
        values: float[B] or None, V of the sequence so far; present if the policy has a value head on its trunk.
        advantages: float[B, V] or None, Q - V of every possible next token; only if requested.
        is_exact: whether the policy itself computed the logits; False for a low-precision copy of it, whose log-probs a
            sampler must not return as the policy's.
    """

    logits: Tensor
    values: Tensor | None
    advantages: Tensor | None = None
    is_exact: bool = True

    def rows(self, index: Tensor) -> DecodeStep:
        """Return the outputs of the sequences at `index`, long[K]."""
        values, advantages = (None if x is None else x[index] for x in (self.values, self.advantages))
        return DecodeStep(self.logits[index], values, advantages, self.is_exact)


@attrs.frozen(eq=False, kw_only=True)
class DecoderRequest:
    """A batch of prompts for which a policy seeks a decoder (`rlcore.hookspecs.make_decoder`).

    Attributes:
        model: the language model, of `transformers` if the policy is.
        prompts: B sequences of token ids, of any lengths >= 1.
        max_new_tokens: upper bound on the calls of `step`.
        speed: the options `model.speed`.
        read_heads: computes values, float[B] or None, and advantages, float[B, V] or None, of a step from the input of
            the output embeddings, float[B, H]; None if a step has neither.
        autocast: returns the context of precision in which the model is run.
        packs: whether the model's attention may run packed: on sequences of these lengths one after another in one row.
        waiting: number of prompts that may join as rows become free.
    """

    model: Any
    prompts: Sequence[Sequence[int]]
    max_new_tokens: int
    speed: Any
    read_heads: Callable[[Tensor], tuple[Tensor | None, Tensor | None]] | None = None
    autocast: Callable[[], AbstractContextManager[Any]] = nullcontext
    packs: bool = False
    waiting: int = 0

    @property
    def device(self) -> torch.device:
        """Return the model's device."""
        found: torch.device = next(self.model.parameters()).device
        return found


@runtime_checkable
class JoiningDecoder(Decoder, Protocol):
    """A decoder that may accept more prompts while it runs (continuous batching); `joins` returns whether it does.

    A policy whose `decoder` has a parameter `waiting` receives there the number of prompts that wait for a free row.
    """

    @property
    def joins(self) -> bool:
        """Whether the decoder accepts more prompts; defined after `start`."""
        ...

    def join(self, prompts: Sequence[Sequence[int]]) -> DecodeStep:
        """Append prompts to the end of the batch and return the outputs for their first new tokens.

        Args:
            prompts: J sequences of token ids, none longer than the longest of the first prompts, each continued by at
                most `max_new_tokens` tokens.
        """
        ...


def joins(decoder: Decoder) -> JoiningDecoder | None:
    """Return `decoder` if it accepts more prompts, else None; call it after `start`."""
    return decoder if isinstance(decoder, JoiningDecoder) and decoder.joins else None
