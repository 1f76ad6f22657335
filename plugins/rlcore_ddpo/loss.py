"""The loss of DDPO, one number for each image at one denoising step."""

from __future__ import annotations

import torch
from torch import Tensor


def clipped_loss(logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, *, clip_range: float) -> Tensor:
    """Return max(-A rho, -A clip(rho, 1 - eps, 1 + eps)) with rho = exp(logprobs - old_logprobs): float[B].

    Black et al. 2023, arXiv:2305.13301, section 4.3.

    Args:
        logprobs: float[B], of the steps under the policy that learns.
        old_logprobs: float[B], of the same steps when they were sampled.
        advantages: float[B].
        clip_range: eps.
    """
    ratio = torch.exp(logprobs - old_logprobs)
    return torch.maximum(-advantages * ratio, -advantages * ratio.clamp(1 - clip_range, 1 + clip_range))
