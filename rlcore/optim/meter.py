"""Average what is measured over the chosen tokens of many micro-batches, on all ranks."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from rlcore.profiling import timed
from rlcore.ranks import Ranks


class Meter:
    """Add up per-token numbers on the device; nothing is read back before `means` is asked for."""

    def __init__(self, ranks: Ranks) -> None:
        self._ranks, self._names = ranks, ["count"]
        self._sums: Tensor | None = None

    @property
    def is_empty(self) -> bool:
        """Tell whether nothing has been added."""
        return self._sums is None

    @timed("metrics")
    def add(self, chosen: Tensor, values: Mapping[str, Tensor]) -> None:
        """Add float[B, T] numbers where bool[B, T] `chosen` is True."""
        self._names = ["count", *values]
        measured = torch.stack([chosen.float(), *values.values()])
        self._accumulate((measured * chosen).flatten(1).sum(1, dtype=torch.float64))

    def merge(self, other: Meter) -> None:
        """Add all that another meter has seen."""
        if other._sums is not None:
            self._names = other._names
            self._accumulate(other._sums)

    def _accumulate(self, sums: Tensor) -> None:
        self._sums = sums if self._sums is None else self._sums + sums

    @timed("metrics")
    def means(self) -> dict[str, float]:
        """Return the average of each number over all tokens added on all ranks."""
        if self._sums is None:
            return {}
        count, *sums = self._ranks.sum(self._sums).tolist()
        return {name: value / max(count, 1.0) for name, value in zip(self._names[1:], sums, strict=True)}
