"""Pairs from scored answers: a pure function of tensors."""

from __future__ import annotations

import torch
from torch import Tensor


def best_and_worst(scores: Tensor, known: Tensor, *, min_margin: float = 0.0) -> Tensor:
    """Return the rows of the best and the worst answer of each group, chosen and rejected in turn: long[2 K].

    K of the P groups have two answers whose scores differ by more than `min_margin`. Of equal scores the first answer
    counts. The rows number all P G answers, group after group.

    Args:
        scores: float[P, G], finite where they are known.
        known: bool[P, G], answers that have a score.
        min_margin: at least 0.
    """
    scores = scores.double()
    best = scores.masked_fill(~known, -torch.inf).max(1)
    worst = scores.masked_fill(~known, torch.inf).min(1)
    is_pair = (known.sum(1) > 1) & (best.values - worst.values > min_margin)
    starts = torch.arange(len(scores), device=scores.device) * scores.shape[1]
    return torch.stack([starts + best.indices, starts + worst.indices], 1)[is_pair].flatten()
