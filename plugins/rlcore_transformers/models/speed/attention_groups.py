"""Run the attention of a packed batch in groups of sequences of similar length, each as wide as its own longest.

Attention over one padded rectangle also moves and computes the padding. Rows sorted by length and split into a few
rectangles have little padding, at the cost of one more call for each.
"""

from __future__ import annotations

from collections.abc import Callable

import attrs
import numpy as np
import torch
from torch import Tensor

from rlcore_transformers.models.speed.length_groups import cut

CALL = 6_000
"""Elements of padding (positions times the width of all heads) that take a CPU about as long as one more call of
attention, forward and backward."""


@attrs.frozen(eq=False)
class AttentionGroups:
    """Mapping between N packed tokens and the padded rectangles, one per group, in which attention runs.

    Attributes:
        indices: long[S], the packed token at each position of all rectangles, one after another; any token at padding.
        positions: long[N], the position that holds the attention output of each packed token.
        shapes: rows and columns of each rectangle.
    """

    indices: Tensor
    positions: Tensor
    shapes: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, indices: Tensor, positions: Tensor, lengths: Tensor, *, width: int) -> AttentionGroups:
        """Split the rows of one rectangle into groups; all tensors are on the host.

        Args:
            indices: long[R * C], as in `rlcore_transformers.models.speed.packing.Packing`.
            positions: long[N], likewise.
            lengths: long[R], real tokens of each row, left-aligned.
            width: elements of one token in all heads of the queries.
        """
        columns = len(indices) // len(lengths)
        rectangle, at, num_tokens = indices.numpy().reshape(-1, columns), positions.numpy(), lengths.numpy()
        order = (-num_tokens).argsort(kind="stable")
        first_rows = cut(num_tokens[order].tolist(), each=CALL // width)
        group_indices, shapes, offset = [], [], 0
        row_starts = np.empty_like(num_tokens)
        for rows in np.split(order, first_rows[1:]):
            longest = max(int(num_tokens[rows[0]]), 1)
            group_indices.append(rectangle[rows, :longest].reshape(-1))
            row_starts[rows] = offset + longest * np.arange(len(rows))
            shapes.append((len(rows), longest))
            offset += len(rows) * longest
        group_positions = row_starts[at // columns] + at % columns
        return cls(torch.from_numpy(np.concatenate(group_indices)), torch.from_numpy(group_positions), tuple(shapes))

    def attend(
        self, query: Tensor, key: Tensor, value: Tensor, mix: Callable[[Tensor, Tensor, Tensor], Tensor]
    ) -> Tensor:
        """Attend group by group: [1, heads, N, width] each to [1, N, heads, width].

        Args:
            query: queries of all packed tokens.
            key: keys, possibly of fewer heads.
            value: values, possibly of fewer heads.
            mix: attention function within the rows of [R, heads, C, width] each.
        """
        mixed = [mix(*each) for each in zip(*map(self._spread, (query, key, value)), strict=True)]
        rows = [group.transpose(1, 2).reshape(-1, group.shape[1], group.shape[3]) for group in mixed]
        return torch.cat(rows).index_select(0, self.positions)[None]

    def _spread(self, packed: Tensor) -> list[Tensor]:
        """Gather [1, heads, N, width] into one [R, heads, C, width] per group."""
        heads, width = packed.shape[1], packed.shape[3]
        spread = packed[0].transpose(0, 1).index_select(0, self.indices)
        parts = spread.split([rows * columns for rows, columns in self.shapes])
        return [part.view(*shape, heads, width).transpose(1, 2) for part, shape in zip(parts, self.shapes, strict=True)]
