"""The losses of reward models: one number for each pair, or for each step of an answer."""

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


def step_loss(logprobs: Tensor, correct: Tensor) -> Tensor:
    """Return the cross-entropy -log P(label) at each token: float[B, T].

    Args:
        logprobs: float[B, T, 2], of a wrong and of a correct step.
        correct: bool[B, T].

    Source: Lightman et al. 2023, arXiv:2305.20050.
    """
    return -torch.where(correct, logprobs[..., 1], logprobs[..., 0])


def combine_steps(logprobs: Tensor, ends: Tensor, *, how: str) -> Tensor:
    """Return one probability for each answer: float[B].

    The smallest P(correct) over its steps, their product (that all steps are correct), or the last. Lightman et al.
    2023, arXiv:2305.20050, appendix E, compares the first two.

    Args:
        logprobs: float[B, T], log P(correct) at each token.
        ends: bool[B, T], True at the last token of each step; at least one in each row.
        how: "min", "product" or "last".
    """
    if how == "product":
        return logprobs.masked_fill(~ends, 0.0).sum(1).exp()
    if how == "min":
        return logprobs.masked_fill(~ends, torch.inf).amin(1).exp()
    last = (ends * torch.arange(1, ends.shape[1] + 1, device=ends.device)).argmax(1)
    return logprobs.gather(1, last[:, None])[:, 0].exp()
