"""Advantages of the responses to one prompt compared with each other, in float64 on the CPU."""

from __future__ import annotations

import attrs
import torch
from torch import Tensor

from rlcore_grpo.scores import Scores

EPSILON = 1e-4
"""Added to standard deviations that divide."""


@attrs.frozen(eq=False)
class Groups:
    """Advantages of a round of P groups of G responses.

    Attributes:
        advantages: float64[P * G], or of each of K turns float64[P * G, K]; 0 for a response without a score.
        has_spread: bool[P], whether two responses of the group have different scores.
        deviation: float64[P], unbiased standard deviation of a group's scores, or of what followed its first turns; 0
            for fewer than two.
    """

    advantages: Tensor
    has_spread: Tensor
    deviation: Tensor


def compare(scores: Scores, size: int, *, baseline: str, scale: str) -> Groups:
    """Return A_i = (r_i - b_i) / s for each response.

    b_i is the mean of the group, or with `baseline="loo"` that of its other responses; s is the unbiased standard
    deviation of the group, or of all responses, plus 1e-4, or 1. Responses without a score take part in neither.
    A group whose scores are all equal has advantages of exactly 0, as has a single response with a score.

    Args:
        scores: of P * G responses.
        size: G.
        baseline: "mean" or "loo".
        scale: "group", "batch" or "none".
    """
    grouped, known = scores.values.view(-1, size), scores.known.view(-1, size)
    count = known.sum(1, keepdim=True)
    mean = grouped.sum(1, keepdim=True) / count.clamp(min=1)
    lowest = grouped.where(known, torch.inf).amin(1)
    highest = grouped.where(known, -torch.inf).amax(1)
    has_spread = (count[:, 0] > 1) & ~(highest <= lowest)  # NaN among the scores is a spread, not an advantage of 0
    difference = (grouped - mean).where(known, 0.0)
    deviation = (difference**2).sum(1).div((count[:, 0] - 1).clamp(min=1)).sqrt() * has_spread
    if baseline == "loo":
        difference = difference * count / (count - 1).clamp(min=1)
    if scale == "group":
        difference = difference / (deviation[:, None] + EPSILON)
    elif scale == "batch":
        difference = difference / (deviation_of(grouped[known]) + EPSILON)
    return Groups(torch.where(has_spread[:, None], difference, 0.0).flatten(), has_spread, deviation)


def compare_each(columns: Scores, weights: Tensor, added: Tensor, size: int, *, baseline: str) -> Groups:
    """Return the weighted sum of the advantages of each reward function, divided by its deviation over all responses.

    Before the division, each response receives what is added to its score less the baseline of its group, so that a
    penalty has the unit of the deviation of a reward function.

    Args:
        columns: the scores of P * G responses by K functions.
        weights: float64[K].
        added: float64[P * G], such as penalties; of a response without a score, nothing is added.
        size: G.
        baseline: "mean" or "loo".

    Source: GDPO, arXiv:2601.05242.
    """
    scored = columns.known.any(1)
    parts = [compare(columns.column(k), size, baseline=baseline, scale="group") for k in range(len(weights))]
    penalties = compare(Scores.of(added, scored), size, baseline=baseline, scale="none")
    total = torch.stack([part.advantages for part in parts], 1) @ weights + penalties.advantages
    has_spread = torch.stack([part.has_spread for part in (*parts, penalties)]).any(0)
    total = torch.where(scored, total / (deviation_of(total[scored]) + EPSILON), 0.0)
    return Groups(total, has_spread, torch.stack([part.deviation for part in parts]).mean(0))


def level(scores: Scores, size: int, *, tolerance: Tensor) -> Scores:
    """Return the scores of each group, all of them its lowest where they differ by rounding only.

    Args:
        scores: of P * G responses.
        size: G.
        tolerance: float64[P], largest difference that counts as rounding.
    """
    grouped, known = scores.values.view(-1, size), scores.known.view(-1, size)
    lowest = grouped.where(known, torch.inf).amin(1)
    is_level = grouped.where(known, -torch.inf).amax(1) - lowest <= tolerance
    return Scores.of(torch.where(is_level[:, None], lowest[:, None], grouped).flatten(), scores.known)


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


def deviation_of(numbers: Tensor) -> Tensor:
    """Return the unbiased standard deviation; 0 for fewer than two numbers, and for equal ones."""
    if len(numbers) < 2 or bool(numbers.max() == numbers.min()):
        return numbers.new_zeros(())
    return numbers.std()
