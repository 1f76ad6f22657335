"""Importance weights of responses whose sampler computed other log-probs than the trainer."""

from __future__ import annotations

import torch
from torch import Tensor

from rlcore.types import Metrics, Trajectories
from rlcore_transformers.rounds.statistics import own_rows, token_mean


def correction(
    old_logprobs: Tensor, sampled_logprobs: Tensor, mask: Tensor, *, kind: str, low: float, high: float
) -> Tensor:
    """Return weights for tokens whose sampler computed other log-probs than the trainer: float[B, T].

    With d = log pi_old - log pi_sampler: `token_truncate` clip(exp d_t, low, high); `token_mask` exp d_t inside
    [low, high], else 0; `sequence_truncate` and `sequence_mask` the same with exp(sum_t d_t); `geometric_mask` 1 where
    exp(mean_t d_t) lies inside, else 0.

    They correct the expectation over samples, apart from a clipped ratio, whose old policy is the trainer's. Yao et al.
    2025, "Your Efficient RL Framework Secretly Brings You Off-Policy RL Training".

    Args:
        old_logprobs: float[B, T], the trainer's.
        sampled_logprobs: float[B, T], the sampler's.
        mask: bool[B, T].
        kind: one of the above.
        low: smallest weight.
        high: largest weight.

    Raises:
        ValueError: `kind` is none of the above.
    """
    gap = torch.where(mask, old_logprobs - sampled_logprobs, 0.0)
    subject, _, action = kind.partition("_")
    if subject == "sequence":
        gap = gap.sum(1, keepdim=True).expand_as(gap)
    elif subject == "geometric":
        gap = (gap.sum(1, keepdim=True) / mask.sum(1, keepdim=True).clamp(min=1)).expand_as(gap)
    elif subject != "token":
        raise ValueError(f"kind = {kind!r}: no such correction")
    weight = gap.exp()
    inside = (weight >= low) & (weight <= high)
    if subject == "geometric":
        return inside.float()
    return weight.clamp(low, high) if action == "truncate" else weight.where(inside, 0.0)


def weight_metrics(batch: Trajectories) -> Metrics:
    """Return the metrics of the column `is_weights` over all chosen tokens of a round, if it has one; collective."""
    rows = own_rows(batch)
    if "is_weights" not in rows:
        return {}
    is_empty, weights = not bool(batch.num_actions.any()), rows["is_weights"]
    return {
        "is/weight_mean": 0.0 if is_empty else token_mean(batch, weights),
        "is/masked_fraction": 0.0 if is_empty else token_mean(batch, weights == 0),
    }
