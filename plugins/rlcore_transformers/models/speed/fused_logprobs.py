"""Compute log-probs and entropies from hidden states, a tile of logits at a time, without a tensor [N, V].

Hidden states H [N, H] and an output embedding W [V, H] give logits f(H W' + b), where f is what a family does to
each of its logits. For a token y of row n,

    logprob = z_y - lse,    lse = log sum_v exp(z_v),    entropy = lse - sum_v p_v z_v,    p = exp(z - lse),

and all of these are sums over the vocabulary, accumulated tile by tile with the running maximum subtracted. Their
gradients with respect to the logits, of which the backward pass recomputes every tile,

    d logprob / dz_v = [v = y] - p_v,    d entropy / dz_v = -p_v (z_v - sum_u p_u z_u),

are multiplied with W and H at once. This takes one matrix product more than keeping the logits.

Running sums over blocks: Milakov and Gimelshein 2018, arXiv:1805.02867, algorithm 3.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import attrs
import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from rlcore_transformers.models.speed.logit_tiles import LogitMap, Tile, TileOptions, tile_of, tiles
from rlcore_transformers.models.speed.small_logprobs import takes_small_logits, whole_scores

WHOLE_BYTES = 32 << 20
"""Logits up to this size are computed in full: that is faster, and small beside a model of such a vocabulary."""

FEW_BYTES = 2 << 20
"""Up to this size, torch's own functions on full logits are faster than `small_logprobs`."""

PLAIN = LogitMap()


class TokenScores(NamedTuple):
    """Scores of N tokens, in float32 (float64 if the hidden states are).

    Attributes:
        logprobs: float[N], log softmax(z)[token].
        entropy: float[N] or None, of softmax(z), in nats.
        chosen: float[N], z[token].
    """

    logprobs: Tensor
    entropy: Tensor | None
    chosen: Tensor


def score_tokens(
    hidden: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    tokens: Tensor,
    *,
    logit_map: LogitMap = PLAIN,
    entropy: bool = False,
    tile: tuple[int, int] | None = None,
) -> TokenScores:
    """Compute log-probs of `tokens`, with gradients for those of `hidden`, `weight` and `bias` that require them.

    Matrix products run in the dtype of a linear layer, under autocast too; everything else in float32. The result for a
    token outside the vocabulary is NaN.

    Args:
        hidden: float[N, H].
        weight: float[V, H].
        bias: float[V] or None.
        tokens: long[N].
        logit_map: what the model does to the product.
        entropy: compute entropies too.
        tile: rows and columns of a tile of logits; default: chosen by the device, or all logits if they are small.
    """
    small = tile is None and len(hidden) and len(hidden) <= rows_kept_whole(weight)
    if small and hidden.dtype == weight.dtype and takes_small_logits(weight, logit_map, entropy=entropy):
        logprobs, chosen = whole_scores(hidden, weight, bias, tokens, logit_map=logit_map)
        return TokenScores(logprobs, None, chosen)
    narrow = torch.is_autocast_enabled(hidden.device.type) and hidden.dtype != torch.float64
    dtype = torch.get_autocast_dtype(hidden.device.type) if narrow else torch.promote_types(hidden.dtype, weight.dtype)
    how = TileOptions(logit_map, dtype, tile or tile_of(len(hidden), hidden.device.type), entropy)
    scores = _ScoreTokens.apply(hidden, weight, bias, tokens, how)  # type: ignore[no-untyped-call]  # torch's is untyped
    logprobs, entropies, chosen = scores
    return TokenScores(logprobs, entropies if entropy else None, chosen)


def rows_kept_whole(weight: Tensor) -> int:
    """Return for how many tokens the full logits are small enough, given an output embedding float[V, H]."""
    return WHOLE_BYTES // (4 * len(weight))


def rows_for_the_head(weight: Tensor, logit_map: LogitMap, *, entropy: bool) -> int:
    """Return for how many tokens the head itself computes the logits faster, given an output embedding float[V, H]."""
    most = min(FEW_BYTES, WHOLE_BYTES) if takes_small_logits(weight, logit_map, entropy=entropy) else WHOLE_BYTES
    return most // (4 * len(weight))


class _ScoreTokens(torch.autograd.Function):
    """Autograd function of `score_tokens`; saves only the inputs and three numbers per row for the backward pass."""

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, tokens: Tensor, how: TileOptions
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return log-probs, entropies (empty without the option) and logits of the tokens."""
        largest = hidden.new_full((len(hidden),), -torch.inf, dtype=how.exact)
        total, moment = torch.zeros_like(largest), torch.zeros_like(largest)
        chosen = torch.full_like(largest, torch.nan)
        with torch.autocast(hidden.device.type, enabled=False):
            for tile in tiles(hidden, weight, bias, tokens, how):
                rows, logits = tile.rows, tile.logits
                picked = logits.gather(1, tile.place)[:, 0]
                chosen[rows] = torch.where(tile.inside, picked, chosen[rows])
                highest = torch.maximum(largest[rows], logits.amax(1))
                # -inf - x is -inf, and exp(-inf) is 0: the first tile shrinks sums that are 0 anyway.
                fall = largest[rows] - highest
                shrink = fall.exp()
                logits.sub_(highest[:, None])
                if how.entropy:
                    powers = logits.exp()
                    before = torch.nan_to_num(fall, neginf=0.0) * total[rows]
                    moment[rows] = (moment[rows] + before) * shrink + logits.mul_(powers).sum(1)
                else:
                    powers = logits.exp_()
                total[rows] = total[rows] * shrink + powers.sum(1)
                largest[rows] = highest
        log_total = total.log()
        # Entropy is lse - mean, and moment / total is the mean less the largest logit.
        entropy = log_total - moment / total if how.entropy else largest.new_empty(0)
        ctx.how = how
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(hidden, weight, bias, tokens, largest + log_total, entropy)
        return (chosen - largest) - log_total, entropy, chosen

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:
        """Return the gradients of hidden states, weight and bias."""
        hidden, weight, bias, tokens, lse, entropy = ctx.saved_tensors
        slopes = _slopes(ctx.how, lse, entropy, gradients)
        sums = _Sums.zeros(ctx.needs_input_grad, hidden, weight, bias, ctx.how)
        if slopes is not None:
            with torch.autocast(hidden.device.type, enabled=False):
                for tile in tiles(hidden, weight, bias, tokens, ctx.how):
                    sums.add(tile, _by_logits(tile, slopes, lse, ctx.how.logit_map))
        return *sums.of(hidden, weight, bias), None, None


class _Slopes(NamedTuple):
    """Coefficients, float[N, 1], of the loss's gradient by a row's logits: p (level + slope z), plus `own`.

    `slope` is None if it is zero; `own` is added at the row's token.
    """

    level: Tensor
    slope: Tensor | None
    own: Tensor


def _slopes(how: TileOptions, lse: Tensor, entropy: Tensor, gradients: tuple[Tensor | None, ...]) -> _Slopes | None:
    """Combine the gradients of log-probs, entropies and chosen logits; None if there are none."""
    by_logprob, by_entropy, by_chosen = gradients
    if by_logprob is None and by_entropy is None and by_chosen is None:
        return None
    none = torch.zeros_like(lse)
    by_logprob = none if by_logprob is None else by_logprob
    level, slope = -by_logprob, None
    if by_entropy is not None:
        slope = -by_entropy
        level = level - slope * (lse - entropy)  # lse - entropy is the mean logit
    own = by_logprob if by_chosen is None else by_logprob + by_chosen
    scale = how.logit_map.scale
    return _Slopes(
        (level * scale)[:, None], None if slope is None else (slope * scale)[:, None], (own * scale)[:, None]
    )


def _by_logits(tile: Tile, slopes: _Slopes, lse: Tensor, logit_map: LogitMap) -> Tensor:
    """Return the loss's gradient with respect to the head's output for a tile; overwrites the tile's logits."""
    rows, logits, cap = tile.rows, tile.logits, logit_map.cap
    bend = (logits / cap).square_().neg_().add_(1) if cap else None  # d cap tanh(x / cap) / dx
    if slopes.slope is None:
        gradient = logits.sub_(lse[rows, None]).exp_().mul_(slopes.level[rows])
    else:
        gradient = (logits - lse[rows, None]).exp_()
        gradient.mul_(logits.mul_(slopes.slope[rows]).add_(slopes.level[rows]))
    gradient.scatter_add_(1, tile.place, slopes.own[rows] * tile.inside[:, None])
    return gradient if bend is None else gradient.mul_(bend)


@attrs.frozen(eq=False)
class _Sums:
    """Sums over tiles of the gradients of hidden states, weight and bias; None for inputs without gradient."""

    hidden: Tensor | None
    weight: Tensor | None
    bias: Tensor | None

    @classmethod
    def zeros(
        cls, wanted: tuple[bool, ...], hidden: Tensor, weight: Tensor, bias: Tensor | None, how: TileOptions
    ) -> _Sums:
        """Return zeros in the precision of the other sums."""
        return cls(
            torch.zeros_like(hidden, dtype=how.exact) if wanted[0] else None,
            torch.zeros_like(weight, dtype=how.exact) if wanted[1] else None,
            torch.zeros_like(bias, dtype=how.exact) if wanted[2] and bias is not None else None,
        )

    def of(self, *inputs: Tensor | None) -> tuple[Tensor | None, ...]:
        """Return the sums in the dtypes of their inputs."""
        sums = (self.hidden, self.weight, self.bias)
        return tuple(s if s is None or x is None else s.to(x.dtype) for s, x in zip(sums, inputs, strict=True))

    def add(self, tile: Tile, gradient: Tensor) -> None:
        """Add the contribution of one tile's gradient, float[R, C]."""
        if self.bias is not None:
            self.bias[tile.columns] += gradient.sum(0)
        gradient = gradient.to(tile.hidden.dtype)
        for total, left, right in (
            (None if self.hidden is None else self.hidden[tile.rows], gradient, tile.weight),
            (None if self.weight is None else self.weight[tile.columns], gradient.T, tile.hidden),
        ):
            if total is not None and total.dtype == left.dtype:
                total.addmm_(left, right)
            elif total is not None:
                total.add_(left @ right)
