"""Advantages of the responses to one prompt compared with each other, in float64 on the CPU.

Also in this file: advantages of turns: what followed a turn, compared with what followed the same turn of the group's
other episodes; scores of responses by reward functions, with a mask in place of a number for scores that are missing.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import torch
from torch import Tensor

from rlcore.training import Round


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


def split_scores(batch: Round, functions: Sequence[str]) -> tuple[Round, Scores]:
    """Return a round without the columns of single reward functions, and these, in this order, on the CPU.

    A process without rows has received the columns of the others in another order.
    """
    names = [f"reward/{name}" for name in functions]
    values, known = (torch.stack([batch[f"{has}{name}"].cpu() for name in names], 1) for has in ("", "has_"))
    taken = {f"{has}{name}" for name in names for has in ("", "has_")}
    return batch.with_only(*(name for name in batch.own.columns if name not in taken)), Scores.of(values, known)


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


def turn_of(mask: Tensor) -> Tensor:
    """Return the number of the turn of each chosen token, from 0, and -1 for other tokens: long[B, T].

    Args:
        mask: bool[B, T], the tokens that the policy chose.
    """
    begins = mask & ~torch.nn.functional.pad(mask, (1, 0))[:, :-1]
    return torch.where(mask, begins.cumsum(1) - 1, -1)


def to_turns(rewards: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Return the sum of the rewards of each turn, float64[B, K], and whether there is such a turn, bool[B, K].

    Args:
        rewards: float[B, T].
        mask: bool[B, T], the tokens that the policy chose.
    """
    turns = turn_of(mask)
    num_turns = turns.amax(1) + 1 if turns.numel() else turns.new_zeros(len(turns))
    most = max(int(num_turns.max()), 1) if len(turns) else 1
    sums = torch.zeros(len(mask), most, dtype=torch.float64, device=mask.device)
    sums.scatter_add_(1, turns.clamp(min=0), rewards.double().where(mask, 0.0))
    return sums, torch.arange(most, device=mask.device) < num_turns[:, None]


def returns_to_go(rewards: Tensor, *, discount: float) -> Tensor:
    """Return R_k = sum over l >= k of discount^(l - k) r_l: float64[B, K].

    Args:
        rewards: float64[B, K], of each turn; 0 where an episode has no such turn.
        discount: of the reward of the next turn.
    """
    found = rewards.clone()
    for k in range(rewards.shape[1] - 2, -1, -1):
        found[:, k] += discount * found[:, k + 1]
    return found


def compare_turns(returns: Scores, size: int, *, baseline: str, scale: str) -> Groups:
    """Return A_ik = (R_ik - b_k) / s for each turn k of each episode i.

    b_k is the mean of the returns of the group's turns of number k, or with `baseline="loo"` that of its other
    episodes; s is their unbiased standard deviation, or that of all returns, plus 1e-4, or 1. Turns of episodes without
    a score take part in neither. A turn that no other episode of the group has gets 0, as do turns whose returns are
    all equal. Episodes of one turn have the advantages of `compare`.

    Args:
        returns: float64[P * G, K] returns to go; known where a scored episode has such a turn.
        size: G.
        baseline: "mean" or "loo".
        scale: "group", "batch" or "none".

    Source: step-relative advantages of Feng et al. 2025, arXiv:2505.10978 (GiGPO), with the number of a turn in place
        of its anchor state.
    """
    own = "none" if scale == "batch" else scale
    turns = [compare(returns.column(k), size, baseline=baseline, scale=own) for k in range(returns.values.shape[1])]
    advantages = torch.stack([turn.advantages for turn in turns], 1)
    if scale == "batch":
        advantages = advantages / (deviation_of(returns.values[returns.known]) + EPSILON)
    has_spread = torch.stack([turn.has_spread for turn in turns], 1)
    return Groups(advantages, has_spread.any(1), turns[0].deviation)


def lone_fraction(known: Tensor, size: int) -> float:
    """Return the share of turns that no other episode of their group has; `known` is bool[P * G, K]."""
    counts = known.view(-1, size, known.shape[1]).sum(1)
    return int((counts == 1).sum()) / max(int(counts.sum()), 1)


def to_tokens(advantages: Tensor, mask: Tensor) -> Tensor:
    """Return the advantage of the turn of each chosen token, and 0 for other tokens: float[B, T].

    Args:
        advantages: float[B, K].
        mask: bool[B, T], the tokens that the policy chose.
    """
    return advantages.to(mask.device).gather(1, turn_of(mask).clamp(min=0)).where(mask, 0.0)
