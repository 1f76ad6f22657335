"""Know of the sequences that are continued together what decides who goes on."""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import torch
from torch import Tensor

from rlcore.types import tensor_on


@attrs.define(eq=False)
class Running:
    """Hold K sequences, in the order in which the decoder has them.

    Sequences may begin at different times; each counts its own tokens (`at`), and the program counts passes, so that no
    device need be asked who is cut.

    Attributes:
        indices: their K indices among all prompts.
        rows: long[K], the same on the device.
        started: long[K], the passes there were before the first token of each.
        cut_at: long[K], the pass after which each is cut.
        tokens: long[K], the newest of each.
        live: bool[K], those that go on; the others are continued in vain until they leave.
        passes: tokens drawn so far for those that are here from the beginning.
        last_join: the passes there were before the last that joined began.
        cuts: passes after which some sequence is cut.
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
        """Begin with sequences that all go on.

        Args:
            indices: K indices among all prompts.
            limits: tokens each may be continued by.
            tokens: the last of each prompt.
            device: where the decoder is.
            passes: how many there were before, with others.
        """
        cuts = [passes + limit for limit in limits]
        rows, cut_at, last = (tensor_on(device, numbers) for numbers in (indices, cuts, tokens))
        started = torch.full_like(rows, passes)
        live = torch.ones_like(rows, dtype=torch.bool)
        return cls(list(indices), rows, started, cut_at, last, live, passes, passes, set(cuts))

    @property
    def at(self) -> Tensor:
        """Count the tokens each has been continued by: long[K]."""
        return self.passes - self.started

    @property
    def is_cut(self) -> bool:
        """Tell whether some sequence may have come to its limit with the newest token."""
        return self.passes in self.cuts

    @property
    def is_over(self) -> bool:
        """Tell whether every sequence has come to its limit."""
        return self.passes >= max(self.cuts)

    def advance(self, tokens: Tensor, ended: Tensor) -> None:
        """Take down the newest tokens, long[K], and who has ended with them, bool[K], or is cut behind them."""
        self.passes += 1
        self.tokens, self.live = tokens, self.live & ~ended
        if self.is_cut:
            self.live = self.live & (self.cut_at > self.passes)

    def going(self) -> list[int]:
        """List the indices of those that go on; the program waits for the device here."""
        return [index for index, goes in enumerate(self.live.tolist()) if goes]

    def keep(self, going: Sequence[int], rows: Tensor) -> list[int]:
        """Go on with those at `going` alone, `rows`, long[L], on the device; return the indices of the others."""
        left = set(self.indices)
        self.indices = [self.indices[index] for index in going]
        for name in ("rows", "started", "cut_at", "tokens", "live"):
            setattr(self, name, getattr(self, name)[rows])
        return sorted(left.difference(self.indices))

    def join(self, others: Running) -> None:
        """Go on with others too, behind those that are here."""
        self.indices += others.indices
        for name in ("rows", "started", "cut_at", "tokens", "live"):
            setattr(self, name, torch.cat([getattr(self, name), getattr(others, name)]))
        self.last_join, self.cuts = others.last_join, self.cuts | others.cuts
