"""Compute log-probs and entropies from hidden states, a tile of logits at a time, without a tensor [N, V].

Hidden states H [N, H] and an output embedding W [V, H] give logits f(H W' + b), where f is what a family does to
each of its logits. For a token y of row n,

    logprob = z_y - lse,    lse = log sum_v exp(z_v),    entropy = lse - sum_v p_v z_v,    p = exp(z - lse),

and all of these are sums over the vocabulary, accumulated tile by tile with the running maximum subtracted. Their
gradients with respect to the logits, of which the backward pass recomputes every tile,

    d logprob / dz_v = [v = y] - p_v,    d entropy / dz_v = -p_v (z_v - sum_u p_u z_u),

are multiplied with W and H at once. This takes one matrix product more than keeping the logits.

Running sums over blocks: Milakov and Gimelshein 2018, arXiv:1805.02867, algorithm 3.

Also in this file: compute log-probs of few tokens from full logits, in one buffer that the backward pass reuses;
compute the logits of many tokens tile by tile, in one reused buffer.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import attrs
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

TILE_BYTES, TILE_ROWS = 4 << 20, 512
"""A tile of logits on a CPU: fits into the cache of one core, with enough rows for a fast matrix product."""
DEVICE_TILE_BYTES, DEVICE_TILE_ROWS = 256 << 20, 4096
"""A tile on an accelerator: large, for few kernel launches. This size has not been measured."""


@attrs.frozen
class LogitMap:
    """What a model does to every output of its head: z = cap tanh(scale x / cap), or z = scale x without a cap.

    Attributes:
        scale: factor of the head's output, as in Cohere and Granite.
        cap: soft cap of the logits, as in Gemma 2; 0 for none.
        in_one_piece: whether logits of few tokens may be kept in one piece (`small_logprobs`).
    """

    scale: float = 1.0
    cap: float = 0.0
    in_one_piece: bool = True

    def at(self, temperature: float) -> LogitMap:
        """Return the map to z / temperature: that of the same form, with scale and cap divided by the temperature."""
        if temperature == 1.0:
            return self
        return attrs.evolve(self, scale=self.scale / temperature, cap=self.cap / temperature)

    def apply_(self, raw: Tensor) -> Tensor:
        """Apply the map to `raw` in place."""
        if self.scale != 1.0:
            raw.mul_(self.scale)
        return raw.div_(self.cap).tanh_().mul_(self.cap) if self.cap else raw


def tile_of(rows: int, device: str) -> tuple[int, int]:
    """Return rows and columns of a tile for the logits of `rows` tokens on a device type."""
    size, most = (TILE_BYTES, TILE_ROWS) if device == "cpu" else (DEVICE_TILE_BYTES, DEVICE_TILE_ROWS)
    height = max(1, min(rows, most))
    return height, max(1, size // (4 * height))


@attrs.frozen
class TileOptions:
    """Options of the forward and backward pass; `dtype` is that of the matrix products."""

    logit_map: LogitMap
    dtype: torch.dtype
    tile: tuple[int, int]
    entropy: bool

    @property
    def exact(self) -> torch.dtype:
        """Return the dtype of everything but the matrix products."""
        return torch.float64 if self.dtype == torch.float64 else torch.float32


class Tile(NamedTuple):
    """A tile of logits: the product of `rows` of H and `columns` of W, given as `hidden` and `weight`.

    `place`, long[R, 1], is the column of each row's token in the tile; if it is in another tile, `inside` is False and
    `place` is any column.
    """

    rows: slice
    columns: slice
    logits: Tensor
    hidden: Tensor
    weight: Tensor
    inside: Tensor
    place: Tensor


def tiles(hidden: Tensor, weight: Tensor, bias: Tensor | None, tokens: Tensor, how: TileOptions) -> Iterator[Tile]:
    """Yield the tiles of all rows for the first columns, then for the next columns, all in one buffer."""
    height, width = how.tile
    space = hidden.new_empty(min(height, len(hidden)) * min(width, len(weight)), dtype=how.exact)
    hidden = hidden.to(how.dtype)
    for left in range(0, len(weight) if len(hidden) else 0, width):
        columns = slice(left, min(left + width, len(weight)))
        part = weight[columns].to(how.dtype)
        offset = None if bias is None else bias[columns].to(how.dtype)
        for top in range(0, len(hidden), height):
            rows = slice(top, min(top + height, len(hidden)))
            read = hidden[rows]
            logits = space[: len(read) * len(part)].view(len(read), len(part))
            if how.dtype != how.exact:
                logits.copy_(F.linear(read, part, offset))
            elif offset is None:
                torch.mm(read, part.T, out=logits)
            else:
                torch.addmm(offset, read, part.T, out=logits)
            how.logit_map.apply_(logits)
            place = tokens[rows, None] - left
            inside = (place >= 0) & (place < len(part))
            yield Tile(rows, columns, logits, read, part, inside[:, 0], place.clamp(0, len(part) - 1))


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
