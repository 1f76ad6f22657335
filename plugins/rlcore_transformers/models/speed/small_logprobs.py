"""Compute log-probs of few tokens from full logits, in one buffer that the backward pass reuses.

The probabilities p = softmax(z) of the logits z = s (H W' + b) overwrite them; the backward pass needs nothing else:

    d logprob / dz_v = [v = y] - p_v.

A row's gradient is its p times one number, so that number is multiplied into the rows of H, and no second tensor
[N, V] is needed:

    dL/dH = own W_y - slope (p W),    dL/dW = p' (-slope H) + own H at row y.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from rlcore_transformers.models.speed.logit_tiles import LogitMap


def takes_small_logits(weight: Tensor, logit_map: LogitMap, *, entropy: bool) -> bool:
    """Return whether this technique applies to an output embedding: in full precision, on a CPU.

    In lower precision p would be rounded, and other devices have not been measured.
    """
    full = weight.dtype in (torch.float32, torch.float64) and not torch.is_autocast_enabled("cpu")
    return logit_map.in_one_piece and weight.device.type == "cpu" and full and not logit_map.cap and not entropy


def whole_scores(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, tokens: Tensor, *, logit_map: LogitMap
) -> tuple[Tensor, Tensor]:
    """Return log-probs and logits of `tokens`, float[N] each; NaN for a token outside the vocabulary.

    Args:
        hidden: float[N, H].
        weight: float[V, H].
        bias: float[V] or None.
        tokens: long[N].
        logit_map: what the model does to the product; without a cap.
    """
    scores: tuple[Tensor, Tensor] = _WholeScores.apply(  # type: ignore[no-untyped-call]  # torch's is untyped
        hidden, weight, bias, tokens, logit_map.scale
    )
    return scores


class _WholeScores(torch.autograd.Function):
    """Autograd function of `whole_scores`; saves the probabilities, in the buffer of the logits."""

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, tokens: Tensor, scale: float
    ) -> tuple[Tensor, Tensor]:
        """Return log-probs and logits of the tokens."""
        logits = LogitMap(scale).apply_(F.linear(hidden, weight, bias))
        inside = (tokens >= 0) & (tokens < len(weight))
        place = tokens.clamp(0, len(weight) - 1)
        chosen = logits.gather(1, place[:, None])[:, 0].masked_fill(~inside, torch.nan)
        largest = logits.amax(1)
        odds = torch.softmax(logits, 1, out=logits)
        # The largest logit's probability is 1 / sum exp(z - largest): at least 1 / V, so no logarithm of 0.
        logprobs = (chosen - largest) + odds.amax(1).log()
        ctx.scale = scale
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(hidden, weight, bias, place, odds)
        return logprobs, chosen

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, by_logprob: Tensor | None, by_chosen: Tensor | None) -> tuple[Tensor | None, ...]:
        """Return the gradients of hidden states, weight and bias."""
        hidden, weight, bias, place, odds = ctx.saved_tensors
        none = torch.zeros_like(odds[:, 0])
        slope = none if by_logprob is None else by_logprob * ctx.scale
        own = slope if by_chosen is None else slope + by_chosen * ctx.scale
        of_hidden, of_weight, of_bias = ctx.needs_input_grad[:3]
        by_hidden = by_weight = by_bias = None
        if of_hidden:
            by_hidden = (odds @ weight).mul_(-slope[:, None]).addcmul_(weight[place], own[:, None])
        if of_weight:
            by_weight = odds.T @ (hidden * -slope[:, None])
            by_weight.index_add_(0, place, hidden * own[:, None])
        if of_bias and bias is not None:
            by_bias = (odds.T @ -slope).index_add_(0, place, own)
        return by_hidden, by_weight, by_bias, None, None
