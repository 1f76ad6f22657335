"""The attention function of a packed prefill, which keeps keys and values for the cache of a decoder."""

from __future__ import annotations

from torch import Tensor

from rlcore_transformers.models.speed.packing import Packing

States = tuple[Tensor, Tensor]
"""Keys and values of one layer."""


class Prefill:
    """The attention function of a packed prefill: it attends as `packing` does and keeps every layer's keys and values.

    Args:
        packing: of the prompts.

    Attributes:
        states: keys and values of each layer that has run, float[1, groups, N, width].
    """

    def __init__(self, packing: Packing) -> None:
        self._packing, self.columns, self.calls = packing, packing.columns, packing.calls
        self.states: list[States] = []

    def attend(self, query: Tensor, key: Tensor, value: Tensor, *, dropout: float, scaling: float | None) -> Tensor:
        """Attend as `Packing.attend` does."""
        self.states.append((key, value))
        return self._packing.attend(query, key, value, dropout=dropout, scaling=scaling)
