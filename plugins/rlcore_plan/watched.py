"""A policy whose decoders report their memory and get caches of a given capacity."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from rlcore.protocols import Decoder, DecodeStep, Policy, joins
from rlcore.sampling.sampler_inputs import takes_waiting
from rlcore_plan.live import LiveBytes, held


class Watched:
    """A policy that measures the memory of its decoders.

    Args:
        policy: the policy that is wrapped.
        live: counts bytes.
        before: bytes held without a decoder.
        waiting: prompts that wait until a sequence is finished; the policy chooses its decoder by this.
        capacity: new tokens for which caches have room; 0 for as many as are sampled.
        is_late: count the peak from the second token on only.

    Attributes:
        cache: bytes that a decoder held besides its outputs, at most.
        logits: bytes of its logits.
        joins: whether its decoder takes in waiting prompts.
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
        self._told: dict[str, Any] = {"waiting": waiting} if takes_waiting(policy) else {}

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the wrapped policy."""
        return getattr(self._policy, name)

    def decoder(self, prompts: Sequence[Sequence[int]], *, max_new_tokens: int, **asked: Any) -> Decoder:
        """Return the policy's decoder, with room for `capacity` new tokens, and measure it."""
        room = self._capacity or max_new_tokens
        return _Decoder(self, self._policy.decoder(prompts, max_new_tokens=room, **asked, **self._told))

    def note(self, said: DecodeStep) -> None:
        """Record what a decoder holds besides its outputs."""
        self.logits = said.logits.shape[0] * said.logits.shape[1] * 4
        own = held(said.logits, said.values, said.advantages)
        self.cache = max(self.cache, self._live.now - own - self._before)
        if self._is_late:
            self._live.restart()


class _Decoder:
    def __init__(self, watch: Watched, decoder: Decoder) -> None:
        self._watch, self._decoder, self._started = watch, decoder, False

    def start(self) -> DecodeStep:
        said = self._decoder.start()
        self._watch.joins = joins(self._decoder) is not None
        return said

    def step(self, tokens: torch.Tensor) -> DecodeStep:
        said = self._decoder.step(tokens)
        if not self._started:
            self._started = True
            self._watch.note(said)
        return said

    def keep(self, rows: torch.Tensor) -> None:
        self._decoder.keep(rows)
