"""Attend to the sequences of a packed batch in groups of about one length, each only as wide as its own longest.

Attention over a padded rectangle computes, and moves, what padding says too. Rows sorted by length and cut into a few
rectangles leave little of that; each costs one more call.
"""

from __future__ import annotations

from collections.abc import Callable

import attrs
import numpy as np
import torch
from torch import Tensor

from rlcore.models.speed.length_groups import cut

CALL = 6_000
"""Numbers of padding, positions times the width of all heads, that cost a CPU about as much as one more call of
attention, forward and backward."""


@attrs.frozen(eq=False)
class AttentionGroups:
    """Say how N packed tokens are spread over rectangles, one a group, and gathered again.

    Attributes:
        indices: long[S], the packed token at each position of all rectangles, in their order; padding may hold any.
        positions: long[N], the position at which attention's result for each packed token is read.
        shapes: rows and columns of each rectangle.
    """

    indices: Tensor
    positions: Tensor
    shapes: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, indices: Tensor, positions: Tensor, lengths: Tensor, *, width: int) -> AttentionGroups:
        """Cut the rows of one rectangle, all on the host, into groups.

        Args:
            indices: long[R * C], of the whole rectangle.
            positions: long[N], likewise.
            lengths: long[R], real tokens of each row, which stand at its left end.
            width: numbers that attention reads of a token.
        """
        columns = len(indices) // len(lengths)
        rectangle, at, tokens = indices.numpy().reshape(-1, columns), positions.numpy(), lengths.numpy()
        order = (-tokens).argsort(kind="stable")
        begins = cut(tokens[order].tolist(), each=CALL // width)
        cuts, shapes, before = [], [], 0
        start = np.empty_like(tokens)
        for rows in np.split(order, begins[1:]):
            longest = max(int(tokens[rows[0]]), 1)
            cuts.append(rectangle[rows, :longest].reshape(-1))
            start[rows] = before + longest * np.arange(len(rows))
            shapes.append((len(rows), longest))
            before += len(rows) * longest
        spread, gathered = np.concatenate(cuts), start[at // columns] + at % columns
        return cls(torch.from_numpy(spread), torch.from_numpy(gathered), tuple(shapes))

    def attend(
        self, query: Tensor, key: Tensor, value: Tensor, mix: Callable[[Tensor, Tensor, Tensor], Tensor]
    ) -> Tensor:
        """Attend group by group: [1, heads, N, width] each to [1, N, heads, width].

        Args:
            query: of all packed tokens; the same with key and value, which may have fewer heads.
            key: likewise.
            value: likewise.
            mix: attention within the rows of [R, heads, C, width] each.
        """
        mixed = [mix(*each) for each in zip(*map(self._spread, (query, key, value)), strict=True)]
        rows = [group.transpose(1, 2).reshape(-1, group.shape[1], group.shape[3]) for group in mixed]
        return torch.cat(rows).index_select(0, self.positions)[None]

    def _spread(self, packed: Tensor) -> list[Tensor]:
        heads, width = packed.shape[1], packed.shape[3]
        spread = packed[0].transpose(0, 1).index_select(0, self.indices)
        parts = spread.split([rows * columns for rows, columns in self.shapes])
        return [part.view(*shape, heads, width).transpose(1, 2) for part, shape in zip(parts, self.shapes, strict=True)]
