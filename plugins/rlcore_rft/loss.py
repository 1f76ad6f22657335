"""The mathematics of RFT: pure functions of tensors."""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import torch
from torch import Tensor

MARGIN = 1e-3
"""Distance of thresholds from the lowest and highest of all scores."""


def percentile(k: int, num_steps: int, *, start: float, end: float) -> float:
    """Return p_k = start + k (end - start) / (K - 1) for improve step k of K, counted from 0; start if K = 1."""
    return start if num_steps == 1 else start + k * (end - start) / (num_steps - 1)


def thresholds(scores: Tensor, counts: Tensor, prompts: Tensor, *, percentile: float) -> Tensor:
    """Return the threshold of each prompt: the score that a response to it must reach.

    It is the quantile of the prompt's scores, interpolated linearly, and lies in [lowest + 1e-3, highest - 1e-3] of all
    prompts' scores. Where these bounds cross, for scores that are (almost) all equal, the lower one holds, and no
    response reaches it.

    Args:
        scores: float[N].
        counts: long[N], how often each response was sampled; the quantile counts it as often.
        prompts: long[N], the index of each response's prompt, from 0 to P - 1, each present.
        percentile: share of scores below the quantile, in [0, 1].

    Returns:
        float64[P].
    """
    exact, order, sizes = scores.double(), prompts.argsort(), prompts.bincount().tolist()
    groups = zip(exact[order].split(sizes), counts[order].split(sizes), strict=True)
    quantiles = [own.repeat_interleave(often).quantile(percentile) for own, often in groups]
    lowest, highest = exact.min(), exact.max()
    return torch.stack(quantiles).clamp(max=highest - MARGIN).clamp(min=lowest + MARGIN)


def first_indices(keys: Sequence[Hashable]) -> tuple[Tensor, Tensor]:
    """Return the first index of each distinct key, ascending, and its number of occurrences: long[K], long[K]."""
    indices: dict[Hashable, int] = {}
    counts: dict[Hashable, int] = {}
    for index, key in enumerate(keys):
        indices.setdefault(key, index)
        counts[key] = counts.get(key, 0) + 1
    return torch.tensor(list(indices.values()), dtype=torch.long), torch.tensor(list(counts.values()), dtype=torch.long)


def nll(logprobs: Tensor) -> Tensor:
    """Return the negative log-likelihood of each sampled token: float[B, T] -> float[B, T]."""
    return -logprobs
