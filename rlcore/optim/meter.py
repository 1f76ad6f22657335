"""Averages of metrics over the micro-batches of many optimizer steps, on all ranks."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from rlcore.profiling import timed
from rlcore.ranks import Ranks


class Meter:
    """Sum metrics on the device; nothing is copied to the host before `means` is called."""

    def __init__(self, ranks: Ranks) -> None:
        self._ranks, self._names = ranks, ["count"]
        self._sums: Tensor | None = None
        self._noted: dict[str, list[Tensor]] = {}

    @property
    def is_empty(self) -> bool:
        """Return whether nothing has been added."""
        return self._sums is None

    @timed("metrics")
    def add(self, chosen: Tensor, values: Mapping[str, Tensor]) -> None:
        """Add one number per token, sequence or group, where `chosen` (bool, of the same shape) is True."""
        self._names = ["count", *values]
        measured = torch.stack([chosen.float(), *values.values()])
        self._accumulate((measured * chosen).flatten(1).sum(1, dtype=torch.float64))

    def note(self, name: str, value: Tensor) -> None:
        """Add one number of an optimizer step, equal on all ranks; `means` weighs every step alike."""
        self._noted.setdefault(name, []).append(value)

    def merge(self, other: Meter) -> None:
        """Add everything that another meter has summed."""
        for name, values in other._noted.items():
            self._noted.setdefault(name, []).extend(values)
        if other._sums is not None:
            self._names = other._names
            self._accumulate(other._sums)

    def _accumulate(self, sums: Tensor) -> None:
        self._sums = sums if self._sums is None else self._sums + sums

    @timed("metrics")
    def means(self) -> dict[str, float]:
        """Return the average of each metric over all entries on all ranks, and of each noted number over steps."""
        noted = {name: sum(map(float, values)) / len(values) for name, values in self._noted.items()}
        if self._sums is None:
            return noted
        count, *sums = self._ranks.sum(self._sums).tolist()
        means = {name: value / max(count, 1.0) for name, value in zip(self._names[1:], sums, strict=True)}
        return means | noted
