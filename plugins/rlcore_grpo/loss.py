"""The losses of GRPO: pure functions of tensors. B responses, T tokens; column t is about token t.

Entries of tokens that do not count (`mask` is False) may be anything, infinite ones included.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

MAX_LOG_RATIO = 20.0
"""Largest absolute log-ratio of a whole response, in nats; its ratio is at most 4.9e8."""


def ratios(logprobs: Tensor, old_logprobs: Tensor, mask: Tensor, *, level: str = "token") -> Tensor:
    """Return pi / pi_old of each token, or of its whole response: float[B, T].

    rho_t = exp(d_t), 1 where no token counts; `sequence`: rho_i = exp(sum_t d_t / n_i), Zheng et al. 2025,
    arXiv:2507.18071; `product`: rho_i = exp(sum_t d_t), the ratio of the response's probabilities; with d = log pi -
    log pi_old over the n_i tokens that count. The gradient of rho_i reaches every token of the response. The sum of
    `product` is cut off at +-MAX_LOG_RATIO, so that ratios of long responses stay finite: within it, ratio and gradient
    are exact; beyond it, rho_i is exp(+-MAX_LOG_RATIO) and its gradient 0.

    Args:
        logprobs: float[B, T], with gradients.
        old_logprobs: float[B, T].
        mask: bool[B, T], tokens that count.
        level: "token", "sequence" or "product".
    """
    gap = torch.where(mask, logprobs - old_logprobs, 0.0)
    if level == "sequence":
        gap = (gap.sum(1, keepdim=True) / mask.sum(1, keepdim=True).clamp(min=1)).expand_as(gap)
    elif level == "product":
        gap = gap.sum(1, keepdim=True).clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).expand_as(gap)
    return gap.exp()


def clipped_loss(
    ratio: Tensor, advantages: Tensor, *, low: float, high: float, dual_clip: float | None = None
) -> Tensor:
    """Return -min(rho A, clip(rho, 1 - low, 1 + high) A), for A < 0 at most -c A with `dual_clip` c: float[B, T].

    Args:
        ratio: float[B, T].
        advantages: float[B, 1], or float[B, T] of turns.
        low: how far below 1 the gradient stops.
        high: how far above 1 the gradient stops.
        dual_clip: c > 1, or None.

    Source: Schulman et al. 2017, arXiv:1707.06347; two bounds, Yu et al. 2025, arXiv:2503.14476; dual clip, Ye et al.
    2020, arXiv:1912.09729.
    """
    loss = -torch.min(ratio * advantages, ratio.clamp(1 - low, 1 + high) * advantages)
    if dual_clip is None:
        return loss
    return torch.where(advantages < 0, torch.min(loss, -dual_clip * advantages), loss)


def cispo_loss(ratio: Tensor, logprobs: Tensor, advantages: Tensor, *, cap: float) -> Tensor:
    """Return -min(rho, cap) A log pi, with a constant ratio: float[B, T]. Only the gradient has a meaning.

    Every token keeps a gradient; `cap` bounds the ratio itself. MiniMax 2025, arXiv:2506.13585.
    """
    return -ratio.detach().clamp(max=cap) * advantages * logprobs


def sapo_loss(ratio: Tensor, advantages: Tensor, *, positive: float = 1.0, negative: float = 1.05) -> Tensor:
    """Return -(4 / tau) sigmoid(tau (rho - 1)) A, tau by the sign of A: float[B, T]. arXiv:2511.20347."""
    tau = torch.where(advantages > 0, positive, negative)
    return -(4 / tau) * torch.sigmoid(tau * (ratio - 1)) * advantages


def vespo_weights(
    logprobs: Tensor,
    old_logprobs: Tensor,
    mask: Tensor,
    advantages: Tensor,
    *,
    positive: tuple[float, float] = (2.0, 3.0),
    negative: tuple[float, float] = (3.0, 2.0),
    corrections: Tensor | None = None,
) -> Tensor:
    """Return phi(w) = w^k exp(lambda (1 - w)), w = pi / pi_old of a whole response, without gradient: float[B, 1].

    phi(1) = 1; responses count less the further w is from k / lambda. Shen et al. 2026, arXiv:2602.10693.

    Args:
        logprobs: float[B, T].
        old_logprobs: float[B, T].
        mask: bool[B, T], tokens that count.
        advantages: float[B, 1].
        positive: k and lambda of responses with A >= 0, above 0.
        negative: k and lambda of the others.
        corrections: float[B, T], pi_old / pi_sampler of each token, which w is multiplied by; None: 1.
    """
    gap = logprobs - old_logprobs
    if corrections is not None:
        gap = gap + corrections.log()
    log_w = torch.where(mask, gap, 0.0).detach().sum(1, keepdim=True)
    is_positive = advantages >= 0
    k, decay = (torch.where(is_positive, a, b).to(log_w.dtype) for a, b in zip(positive, negative, strict=True))
    return (k * log_w + decay * (1 - log_w.exp())).exp()


def vespo_loss(weights: Tensor, logprobs: Tensor, advantages: Tensor) -> Tensor:
    """Return -phi A log pi, phi of `vespo_weights`: float[B, T]. Only the gradient has a meaning. arXiv:2602.10693."""
    return -weights * advantages * logprobs


def token_weights(lengths: Tensor, *, norm: str, max_new_tokens: int) -> tuple[Tensor, float]:
    """Return what a token's loss is multiplied by, and what the sum of a whole optimizer step is divided by.

    token: sum / N. sequence: sum_i (1 / n_i) sum_t / B. sum: sum / B. constant: sum / (R max_new_tokens). N tokens and
    B responses count, over all micro-batches and ranks; R is the number of all responses, those without a token that
    counts included.

    Args:
        lengths: long[B], the number of tokens that count of each response of the whole optimizer step.
        norm: "token", "sequence", "sum" or "constant".
        max_new_tokens: longest response.

    Returns:
        float[B, 1] weights and the divisor; 0 if no token counts.
    """
    lengths = lengths[:, None]
    ones = torch.ones_like(lengths, dtype=torch.float32)
    if norm == "token":
        return ones, float(lengths.sum())
    count = float((lengths > 0).sum())
    if norm == "sequence":
        return ones / lengths.clamp(min=1), count
    if norm == "sum":
        return ones, count
    return ones, float(len(lengths) * max_new_tokens) if count else 0.0


def off_policy(
    logprobs: Tensor, sampled_logprobs: Tensor, mask: Tensor, advantages: Tensor, *, threshold: float
) -> Tensor:
    """Return the responses with A < 0 and mean_t (log pi_sampler - log pi) above `threshold`: bool[B, 1].

    Args:
        logprobs: float[B, T], of the policy that learns.
        sampled_logprobs: float[B, T], the sampler's.
        mask: bool[B, T].
        advantages: float[B, 1], or float[B, T] of turns.
        threshold: in nats.

    Source: DeepSeek-V3.2, arXiv:2512.02556.
    """
    fallen = torch.where(mask, sampled_logprobs - logprobs, 0.0).sum(1, keepdim=True)
    return (advantages < 0) & (fallen / mask.sum(1, keepdim=True).clamp(min=1) > threshold)


def uncertain(entropies: Tensor, *, share: float) -> Tensor:
    """Return the lowest of the highest entropies, the quantile 1 - share of all: float[].

    Args:
        entropies: float[N], of the tokens of the whole optimizer step that count; at least one.
        share: in (0, 1].

    Source: Wang et al. 2025, arXiv:2506.01939.
    """
    counted = entropies.sort().values
    # No entropy lies between an interpolated quantile and the next one, and torch.quantile has a limit on its input.
    return counted[math.ceil((1 - share) * (len(counted) - 1) - 1e-9)]
