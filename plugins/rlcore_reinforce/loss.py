"""The loss and the advantages of REINFORCE: pure functions of tensors."""

from __future__ import annotations

from torch import Tensor


def leave_one_out(scores: Tensor) -> Tensor:
    """Return each score minus the mean of the other scores: float[B] -> float[B], B at least 2.

    A_i = R_i - sum_{j != i} R_j / (B - 1). Kool et al. 2019.
    """
    return scores - (scores.sum() - scores) / (len(scores) - 1)


def policy_loss(logprobs: Tensor, advantages: Tensor) -> Tensor:
    """Return -A_i log pi(a_{i,t}), one number per token: float[B, T], float[B] -> float[B, T]. Williams 1992."""
    return -advantages[:, None] * logprobs
