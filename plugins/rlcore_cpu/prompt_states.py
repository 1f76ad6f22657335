"""Keys and values of a packed prefill, from which each cache builds its own layout."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from rlcore_transformers.models.decoding.cache import States


class PromptStates(NamedTuple):
    """Keys and values of D distinct prompts of up to P tokens, which B sequences continue.

    Attributes:
        layers: keys and values of the N packed tokens, float[1, groups, N, width], layer by layer.
        token_index: long[D, P], the packed token at each position of the prompts; any token after a prompt's end.
        lengths: long[D], of the prompts.
        copies: long[B], the prompt of each sequence.
    """

    layers: list[States]
    token_index: Tensor
    lengths: Tensor
    copies: Tensor

    @property
    def columns(self) -> int:
        """Return the length of the longest prompt: P."""
        return self.token_index.shape[1]

    @property
    def is_ragged(self) -> bool:
        """Return whether prompts differ in length."""
        return int(self.lengths.min()) < self.columns

    @property
    def start_lengths(self) -> Tensor:
        """Return the length of each sequence's prompt: long[B]."""
        return self.lengths[self.copies]


def gather_states(states: Tensor, index: Tensor) -> Tensor:
    """Gather packed states, float[1, groups, N, width], at `index`, long[K, W]: float32[K, groups, W, width]."""
    rows = states[0].transpose(0, 1)[index].transpose(1, 2)
    return rows.to(torch.float32).contiguous()
