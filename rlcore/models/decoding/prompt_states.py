"""Keys and values of prompts that were read packed, before a cache lays them out to its own liking."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

States = tuple[Tensor, Tensor]
"""Keys and values of one layer."""


class PromptStates(NamedTuple):
    """Hold what attention was given of D distinct prompts, P tokens the longest, that B sequences continue.

    Attributes:
        read: keys and values of the N packed tokens, float[1, groups, N, width], layer by layer.
        places: long[D, P], the packed token at each position of the prompts; what is beyond an end may be any.
        lengths: long[D], the prompts'.
        copies: long[B], the prompt of each sequence.
    """

    read: list[States]
    places: Tensor
    lengths: Tensor
    copies: Tensor

    @property
    def columns(self) -> int:
        """Count the tokens of the longest prompt: P."""
        return self.places.shape[1]

    @property
    def is_ragged(self) -> bool:
        """Tell whether some prompt is shorter than the longest."""
        return int(self.lengths.min()) < self.columns

    @property
    def begun(self) -> Tensor:
        """Tell how long each sequence is before it is continued: long[B]."""
        return self.lengths[self.copies]


def gathered(states: Tensor, picked: Tensor) -> Tensor:
    """Take packed states, float[1, groups, N, width], at `picked`, long[K, W]: float32[K, groups, W, width]."""
    rows = states[0].transpose(0, 1)[picked].transpose(1, 2)
    return rows.to(torch.float32).contiguous()
