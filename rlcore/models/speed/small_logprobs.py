"""Read log-probs off hidden states through all their logits at once, which are made in one piece of memory.

With logits z = s (H W' + b), p = softmax(z) takes their place, and that is all the backward pass needs:

    d logprob / dz_v = [v = y] - p_v.

A row's gradient is its p times one number, so the number is multiplied into rows of H, and no further [N, V] is made:

    dL/dH = own W_y - slope (p W),    dL/dW = p' (-slope H) + own H at row y.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from rlcore.models.speed.logit_tiles import LogitMap


def takes_small_logits(weight: Tensor, logit_map: LogitMap, *, entropy: bool) -> bool:
    """Tell whether this is the way to small logits of an output embedding: in full precision on a CPU.

    Where products are narrow rows of p would have to be rounded, and other devices have not been measured.
    """
    full = weight.dtype in (torch.float32, torch.float64) and not torch.is_autocast_enabled("cpu")
    return logit_map.in_one_piece and weight.device.type == "cpu" and full and not logit_map.cap and not entropy


def whole_scores(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, tokens: Tensor, *, logit_map: LogitMap
) -> tuple[Tensor, Tensor]:
    """Return log-probs and logits of `tokens`, float[N] each, NaN for a token that is none of the vocabulary.

    Args:
        hidden: float[N, H].
        weight: float[V, H].
        bias: float[V] or None.
        tokens: long[N].
        logit_map: what is done to the product; it may have no cap.
    """
    said: tuple[Tensor, Tensor] = _WholeScores.apply(  # type: ignore[no-untyped-call]  # torch's is untyped
        hidden, weight, bias, tokens, logit_map.scale
    )
    return said


class _WholeScores(torch.autograd.Function):
    """Compute `whole_scores`; the probabilities are kept for the backward pass, in the memory of the logits."""

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
