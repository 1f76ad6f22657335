"""Advantages of the responses to one prompt compared with each other, in float64 on the CPU."""

from __future__ import annotations

import attrs
import torch
from torch import Tensor

EPSILON = 1e-4
"""Added to standard deviations that divide."""


@attrs.frozen(eq=False)
class Groups:
    """Advantages of a round of P groups of G responses.

    Attributes:
        advantages: float64[P * G]; 0 for a response without a score.
        has_spread: bool[P], whether two responses of the group have different scores.
        deviation: float64[P], unbiased standard deviation of a group's scores; 0 for fewer than two.
    """

    advantages: Tensor
    has_spread: Tensor
    deviation: Tensor


def compare(scores: Tensor, size: int, *, baseline: str, scale: str) -> Groups:
    """Return A_i = (r_i - b_i) / s for each response.

    b_i is the mean of the group, or with `baseline="loo"` that of its other responses; s is the unbiased standard
    deviation of the group, or of all responses, plus 1e-4, or 1. Responses without a score (NaN) take part in neither.
    A group whose scores are all equal has advantages of exactly 0, as has a single response with a score.

    Args:
        scores: float64[P * G]; NaN where a response has no score.
        size: G.
        baseline: "mean" or "loo".
        scale: "group", "batch" or "none".
    """
    grouped = scores.view(len(scores) // size, size)
    known = ~grouped.isnan()
    count = known.sum(1, keepdim=True)
    filled = grouped.where(known, 0.0)
    mean = filled.sum(1, keepdim=True) / count.clamp(min=1)
    lowest = grouped.where(known, torch.inf).amin(1)
    highest = grouped.where(known, -torch.inf).amax(1)
    has_spread = (count[:, 0] > 1) & (highest > lowest)
    difference = (grouped - mean).where(known, 0.0)
    deviation = (difference**2).sum(1).div((count[:, 0] - 1).clamp(min=1)).sqrt() * has_spread
    if baseline == "loo":
        difference = difference * count / (count - 1).clamp(min=1)
    if scale == "group":
        difference = difference / (deviation[:, None] + EPSILON)
    elif scale == "batch":
        difference = difference / (_deviation(grouped[known]) + EPSILON)
    return Groups(torch.where(has_spread[:, None], difference, 0.0).flatten(), has_spread, deviation)


def compare_each(columns: Tensor, weights: Tensor, added: Tensor, size: int, *, baseline: str) -> Groups:
    """Return the weighted sum of the advantages of each reward function, divided by its deviation over all responses.

    Before the division, each response receives what is added to its score less the baseline of its group, so that a
    penalty has the unit of the deviation of a reward function.

    Args:
        columns: float64[P * G, K], the scores of K functions; NaN where one does not apply.
        weights: float64[K].
        added: float64[P * G], such as penalties; NaN for a response without a score.
        size: G.
        baseline: "mean" or "loo".

    Source: GDPO, arXiv:2601.05242.
    """
    parts = [compare(column, size, baseline=baseline, scale="group") for column in columns.unbind(1)]
    penalties = compare(added, size, baseline=baseline, scale="none")
    total = torch.stack([part.advantages for part in parts], 1) @ weights + penalties.advantages
    has_spread = torch.stack([part.has_spread for part in (*parts, penalties)]).any(0)
    scored = ~columns.isnan().all(1)
    total = torch.where(scored, total / (_deviation(total[scored]) + EPSILON), 0.0)
    return Groups(total, has_spread, torch.stack([part.deviation for part in parts]).mean(0))


def weighted_sum(columns: Tensor, weights: Tensor) -> Tensor:
    """Return the weighted sum over functions that apply, NaN where none does: float64[B, K] -> float64[B]."""
    total = (columns.nan_to_num(0.0) * weights).sum(1)
    return torch.where(columns.isnan().all(1), torch.nan, total)


def level(numbers: Tensor, size: int, *, tolerance: Tensor) -> Tensor:
    """Return the numbers of each group, all of them its lowest where they differ by rounding only: float64[P * G].

    Args:
        numbers: float64[P * G]; NaN where there is none.
        size: G.
        tolerance: float64[P], largest difference that counts as rounding.
    """
    grouped = numbers.view(len(numbers) // size, size)
    known = ~grouped.isnan()
    lowest = grouped.where(known, torch.inf).amin(1)
    is_level = grouped.where(known, -torch.inf).amax(1) - lowest <= tolerance
    return torch.where(is_level[:, None] & known, lowest[:, None], grouped).flatten()


def overlong(lengths: Tensor, *, longest: int, buffer: float, penalty: float) -> Tensor:
    """Return what is added to the score of a response: 0 up to longest - buffer tokens, -penalty at longest.

    Args:
        lengths: long[B], tokens of each response.
        longest: length limit in tokens.
        buffer: tokens over which the penalty grows; below 1, their share of `longest`.
        penalty: at the limit.

    Source: Yu et al. 2025, arXiv:2503.14476, equation 13.
    """
    room = buffer if buffer >= 1 else buffer * longest
    over = (lengths.double() - (longest - room)).clamp(min=0) / room
    return -penalty * over.clamp(max=1)


def _deviation(numbers: Tensor) -> Tensor:
    """Return the unbiased standard deviation; 0 for fewer than two numbers, and for equal ones."""
    if len(numbers) < 2 or bool(numbers.max() == numbers.min()):
        return numbers.new_zeros(())
    return numbers.std()
