"""Compute the logits of many tokens tile by tile, in one reused buffer."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import attrs
import torch
import torch.nn.functional as F
from torch import Tensor

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
