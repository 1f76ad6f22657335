"""Know of the sequences that are continued together what decides who goes on."""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import torch
from torch import Tensor

from rlcore.devices import tensor_on


@attrs.define(eq=False)
class Running:
    """Hold K sequences of a batch, in the order in which the decoder has them.

    Attributes:
        rows: long[K], their places among all prompts.
        limits: long[K], tokens each may be continued by.
        tokens: long[K], the newest of each.
        live: bool[K], those that go on; the others are continued in vain until they leave.
    """

    rows: Tensor
    limits: Tensor
    tokens: Tensor
    live: Tensor

    @classmethod
    def begin(cls, rows: Sequence[int], limits: Sequence[int], tokens: Sequence[int], device: torch.device) -> Running:
        """Begin with sequences that all go on."""
        places, most, newest = (tensor_on(device, numbers) for numbers in (rows, limits, tokens))
        return cls(places, most, newest, torch.ones_like(places, dtype=torch.bool))

    def cut(self, num_tokens: int) -> None:
        """End those that may be continued by so many tokens and no more."""
        self.live = self.live & (self.limits > num_tokens)

    def going(self) -> list[int]:
        """List the places of those that go on; the program waits for the device here."""
        return [place for place, goes in enumerate(self.live.tolist()) if goes]

    def keep(self, places: Tensor) -> None:
        """Go on with those at `places`, long[L]."""
        self.rows, self.limits = self.rows[places], self.limits[places]
        self.tokens, self.live = self.tokens[places], self.live[places]
