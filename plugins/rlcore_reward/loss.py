"""The losses of a reward model, one for each pair."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import logsigmoid


def pair_loss(
    chosen: Tensor,
    rejected: Tensor,
    *,
    margins: Tensor | None = None,
    ties: Tensor | None = None,
    tie_ratio: float = 1.0,
    center_coef: float = 0.0,
) -> Tensor:
    """Return -log P(outcome) of each pair, plus center_coef (r_c + r_r)^2: float[P].

    Without ties, P = sigmoid(r_c - r_r - margin): Bradley and Terry 1952; Touvron et al. 2023, arXiv:2307.09288, eq. 2.

    Args:
        chosen: float[P], scores of the preferred answers.
        rejected: float[P], scores of the other answers.
        margins: float[P], at least 0; by how much the first should exceed the second.
        ties: bool[P], True for pairs of equally good answers; their margin has no effect.
        tie_ratio: theta of Rao and Kupper 1967; at 1, ties are impossible.
        center_coef: weight of the centring term (Eisenstein et al. 2023, arXiv:2312.09244, eq. 2).
    """
    delta, threshold = chosen - rejected, math.log(tie_ratio)
    better = -logsigmoid(delta - (0.0 if margins is None else margins) - threshold)
    if ties is not None:
        likelihood = math.log(max(tie_ratio**2 - 1, 1e-300))
        tied = -(likelihood + logsigmoid(delta - threshold) + logsigmoid(-delta - threshold))
        better = torch.where(ties, tied, better)
    return better + center_coef * (chosen + rejected).square() if center_coef else better
