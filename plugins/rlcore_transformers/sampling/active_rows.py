"""State of the sequences that are decoded together: their lengths, limits and newest tokens."""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import torch
from torch import Tensor

from rlcore.types import tensor_on


@attrs.define(eq=False)
class Running:
    """K running sequences, in the decoder's order.

    Sequences may start at different steps. The host counts decoding steps (`passes`), from which the token index of
    each sequence (`at`) and the end of its limit follow without reading from the device.

    Attributes:
        indices: K indices of their prompts.
        rows: long[K], `indices` on the device.
        started: long[K], number of steps before each sequence's first token.
        cut_at: long[K], number of steps after which each sequence reaches its limit.
        tokens: long[K], the newest token of each.
        live: bool[K], True for sequences that have not ended; the tokens of the others are discarded.
        passes: number of decoding steps so far.
        last_join: number of steps before the most recent sequences joined.
        cuts: all values of `cut_at`, on the host.
    """

    indices: list[int]
    rows: Tensor
    started: Tensor
    cut_at: Tensor
    tokens: Tensor
    live: Tensor
    passes: int
    last_join: int
    cuts: set[int]

    @classmethod
    def begin(
        cls, indices: Sequence[int], limits: Sequence[int], tokens: Sequence[int], device: torch.device, passes: int = 0
    ) -> Running:
        """Start K sequences.

        Args:
            indices: K indices of their prompts.
            limits: maximum number of new tokens of each.
            tokens: the last token of each prompt.
            device: the decoder's device.
            passes: number of decoding steps before, if they join running sequences.
        """
        cuts = [passes + limit for limit in limits]
        rows, cut_at, last = (tensor_on(device, numbers) for numbers in (indices, cuts, tokens))
        started = torch.full_like(rows, passes)
        live = torch.ones_like(rows, dtype=torch.bool)
        return cls(list(indices), rows, started, cut_at, last, live, passes, passes, set(cuts))

    @property
    def at(self) -> Tensor:
        """Return the number of new tokens of each sequence: long[K]."""
        return self.passes - self.started

    @property
    def is_cut(self) -> bool:
        """Return whether a sequence may have reached its limit with the newest token."""
        return self.passes in self.cuts

    @property
    def is_over(self) -> bool:
        """Return whether every sequence has reached its limit."""
        return self.passes >= max(self.cuts)

    def advance(self, tokens: Tensor, ended: Tensor) -> None:
        """Store the newest tokens, long[K], and update `live` with `ended`, bool[K], and the limits."""
        self.passes += 1
        self.tokens, self.live = tokens, self.live & ~ended
        if self.is_cut:
            self.live = self.live & (self.cut_at > self.passes)

    def going(self) -> list[int]:
        """Return the positions of the live sequences; this synchronises with the device."""
        return [position for position, is_live in enumerate(self.live.tolist()) if is_live]

    def keep(self, going: Sequence[int], rows: Tensor) -> list[int]:
        """Keep the sequences at `going` (`rows`, long[L], on the device); return the prompt indices of the others."""
        left = set(self.indices)
        self.indices = [self.indices[position] for position in going]
        for name in ("rows", "started", "cut_at", "tokens", "live"):
            setattr(self, name, getattr(self, name)[rows])
        return sorted(left.difference(self.indices))

    def join(self, others: Running) -> None:
        """Append other sequences."""
        self.indices += others.indices
        for name in ("rows", "started", "cut_at", "tokens", "live"):
            setattr(self, name, torch.cat([getattr(self, name), getattr(others, name)]))
        self.last_join, self.cuts = others.last_join, self.cuts | others.cuts
