"""The losses of PPO: pure functions of tensors, one number per token; the trainer reduces them.

Every argument is float[B, T], column t about token t; entries of tokens the policy did not choose are
arbitrary finite numbers, since only chosen tokens are summed.
"""

from __future__ import annotations

import torch
from torch import Tensor


def policy_loss(logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, *, clip: float) -> Tensor:
    """Return the clipped surrogate, max(-A rho, -A clip(rho, 1 - eps, 1 + eps)) with rho = pi / pi_old.

    On the clipped side of an advantage the gradient is zero. Schulman et al. 2017, arXiv:1707.06347, equation 7.
    """
    ratio = (logprobs - old_logprobs).exp()
    return torch.max(-advantages * ratio, -advantages * ratio.clamp(1 - clip, 1 + clip))


def value_loss(values: Tensor, old_values: Tensor, returns: Tensor, *, clip: float) -> Tensor:
    """Return half the larger of (V - R)^2 and (clip(V, V_old - eps, V_old + eps) - R)^2; clip = 0 leaves V free.

    Huang et al. 2024, arXiv:2403.17031, detail "value function loss clipping".
    """
    free = (values - returns) ** 2
    if not clip:
        return free / 2
    clipped = old_values + (values - old_values).clamp(-clip, clip)
    return torch.max(free, (clipped - returns) ** 2) / 2


def value_clipped(values: Tensor, old_values: Tensor, returns: Tensor, *, clip: float) -> Tensor:
    """Return where `value_loss` takes the clipped value, whose gradient is zero: bool[B, T].

    A value outside V_old +- eps that is farther from R than the bound keeps its gradient, and does not count.
    """
    moved = values - old_values
    clipped = old_values + moved.clamp(-clip, clip)
    return (moved.abs() > clip) & ((clipped - returns).abs() > (values - returns).abs()) & bool(clip)
