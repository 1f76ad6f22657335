"""A policy whose decoders are watched: what they hold, and what room their caches have."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from rlcore.protocols import Decoder, DecodeStep, Policy, joins
from rlcore.sampling.inputs import takes_waiting
from rlcore_plan.live import LiveBytes, held


class Watched:
    """Be a policy that notes what its decoders hold.

    Args:
        policy: what it is otherwise.
        live: counts bytes.
        before: bytes there were without a decoder.
        waiting: prompts that would wait for a place behind those that are sampled, which decides on the decoder.
        capacity: tokens there shall be room for; as many as are asked for when left out.
        is_late: count the peak from the second token on only.

    Attributes:
        cache: bytes that a decoder held besides what it said, at most.
        logits: bytes of what it said.
        joins: whether its decoder would take those in that wait.
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
        """Be the policy in everything else."""
        return getattr(self._policy, name)

    def decoder(self, prompts: Sequence[Sequence[int]], *, max_new_tokens: int, **asked: Any) -> Decoder:
        """Begin to continue prompts, with room for `capacity` more tokens."""
        room = self._capacity or max_new_tokens
        return _Decoder(self, self._policy.decoder(prompts, max_new_tokens=room, **asked, **self._told))

    def note(self, said: DecodeStep) -> None:
        """Take down what a decoder holds besides what it has just said."""
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
