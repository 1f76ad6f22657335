"""Advantages of turns: what followed a turn, compared with what followed the same turn of the group's other episodes.

A turn is a run of tokens that the policy chose, with other tokens before and behind it. K is the largest number of
turns of an episode.
"""

from __future__ import annotations

import torch
from torch import Tensor

from rlcore_grpo.advantages import EPSILON, Groups, compare, deviation_of
from rlcore_grpo.scores import Scores


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
