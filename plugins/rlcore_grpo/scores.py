"""Scores of responses by reward functions, with a mask in place of a number for scores that are missing."""

from __future__ import annotations

import attrs
import torch
from torch import Tensor

from rlcore.training import Scored
from rlcore.types import Trajectories


@attrs.frozen(eq=False)
class Scores:
    """Scores of B responses, by one or K reward functions, some of which may be missing.

    A missing score is told by the mask alone: a NaN among the scores that are known is a number that went wrong, and
    makes the advantages of its group NaN.

    Attributes:
        values: float64[B] or float64[B, K]; 0 where there is no score.
        known: bool of the same shape, True where there is a score.
    """

    values: Tensor
    known: Tensor

    @classmethod
    def of(cls, values: Tensor, known: Tensor) -> Scores:
        """Return scores with zeros in place of the missing ones."""
        return cls(values.double().where(known, 0.0), known)

    def plus(self, numbers: Tensor) -> Scores:
        """Return the scores with numbers added, float64[B]; missing scores stay missing."""
        return Scores.of(self.values + numbers, self.known)

    def column(self, k: int) -> Scores:
        """Return the scores of one function."""
        return Scores(self.values[:, k], self.known[:, k])

    def rows(self, index: Tensor) -> Scores:
        """Return the scores of the responses at `index`, long[K]."""
        return Scores(self.values[index], self.known[index])


def weighted_sum(columns: Scores, weights: Tensor) -> Scores:
    """Return the weighted sum over the functions that apply to a response; no score where none does."""
    return Scores.of((columns.values * weights).sum(1), columns.known.any(1))


def add_scores(batch: Trajectories, scored: Scored) -> Trajectories:
    """Add the score of each response by each reward function, float64[B], and whether there is one, bool[B]."""
    columns: dict[str, Tensor] = {}
    for name, scores in scored.by_name.items():
        value, known = _columns(name)
        device = batch.tokens.device
        columns[value] = torch.tensor([x or 0.0 for x in scores], dtype=torch.float64, device=device)
        columns[known] = torch.tensor([x is not None for x in scores], dtype=torch.bool, device=device)
    return batch.with_columns(**columns)


def split_scores(batch: Trajectories, scored: Scored) -> tuple[Trajectories, Scores]:
    """Return a batch without the columns of `add_scores`, and these."""
    pairs = [_columns(name) for name in scored.by_name]
    values, known = (torch.stack([batch[names[i]].cpu() for names in pairs], 1) for i in (0, 1))
    taken = {name for names in pairs for name in names}
    columns = {name: array for name, array in batch.columns.items() if name not in taken}
    return attrs.evolve(batch, columns=columns), Scores.of(values, known)


def _columns(reward: str) -> tuple[str, str]:
    return f"reward/{reward}", f"has_reward/{reward}"
