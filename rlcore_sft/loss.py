"""The loss of supervised fine-tuning: a pure function of tensors, one number per token."""

from __future__ import annotations

from torch import Tensor


def nll(logprobs: Tensor) -> Tensor:
    """Return the negative log-likelihood of each chosen token: float[B, T] -> float[B, T]."""
    return -logprobs
