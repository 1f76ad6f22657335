"""A policy wrapper that measures the memory of decoders and sets the capacity of their caches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from rlcore.protocols import Decoder, DecodeStep, Policy
from rlcore.protocols.decoders import joins
from rlcore.sampling import takes_waiting
from rlcore_plan.live import LiveBytes, held


class MeasuredPolicy:
    """A policy that measures the memory of its decoders.

    Args:
        policy: the wrapped policy.
        live: counts the bytes of tensors.
        before: bytes held without a decoder.
        waiting: number of prompts that join once a sequence is finished; the policy chooses its decoder by this number.
        capacity: new tokens for which caches have room; 0 for the number that is sampled.
        is_late: whether the peak is counted only from the second token on.

    Attributes:
        cache: largest number of bytes that a decoder held besides its outputs.
        logits: bytes of its logits.
        joins: whether its decoder accepts waiting prompts.
    """

    def __init__(
        self,
        policy: Policy,
        live: LiveBytes,
        before: int,
        *,
        waiting: int,
        capacity: int = 0,
        is_late: bool = False,
    ) -> None:
        self._policy, self._live, self._before, self._capacity = policy, live, before, capacity
        self._is_late, self.cache, self.logits, self.joins = is_late, 0, 0, False
        self._options: dict[str, Any] = {"waiting": waiting} if takes_waiting(policy) else {}

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the wrapped policy."""
        return getattr(self._policy, name)

    def decoder(self, prompts: Sequence[Sequence[int]], *, max_new_tokens: int, **options: Any) -> Decoder:
        """Return the policy's decoder, with room for `capacity` new tokens, and measure it."""
        room = self._capacity or max_new_tokens
        return _Decoder(self, self._policy.decoder(prompts, max_new_tokens=room, **options, **self._options))

    def note(self, outputs: DecodeStep) -> None:
        """Record the bytes that a decoder holds besides its outputs."""
        self.logits = outputs.logits.shape[0] * outputs.logits.shape[1] * 4
        own = held(outputs.logits, outputs.values, outputs.advantages)
        self.cache = max(self.cache, self._live.now - own - self._before)
        if self._is_late:
            self._live.restart()


class _Decoder:
    def __init__(self, policy: MeasuredPolicy, decoder: Decoder) -> None:
        self._policy, self._decoder, self._started = policy, decoder, False

    def start(self) -> DecodeStep:
        outputs = self._decoder.start()
        self._policy.joins = joins(self._decoder) is not None
        return outputs

    def step(self, tokens: torch.Tensor) -> DecodeStep:
        outputs = self._decoder.step(tokens)
        if not self._started:
            self._started = True
            self._policy.note(outputs)
        return outputs

    def keep(self, rows: torch.Tensor) -> None:
        self._decoder.keep(rows)
