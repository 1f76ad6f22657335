"""Map the hidden states of a packed or padded batch to its sequences and back."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Any

import attrs
import torch
from torch import Tensor

TOKEN_BYTES = torch.long.itemsize


@attrs.frozen(eq=False)
class Layout:
    """Where the sequences of a batch are in the hidden states of its forward pass, `[1, N, H]` or `[B, T, H]`.

    Attributes:
        keys: each row's real tokens, as bytes; empty rows are left out.
        skipped: number of first tokens that a row shares with a row before it, which holds their hidden states.
        lengths: number of tokens of each row.
        indices: long[M], index in the flattened hidden states of each row's tokens, row after row.
        shape: (1, N) or (B, T).
    """

    keys: Sequence[bytes]
    skipped: Sequence[int]
    lengths: Sequence[int]
    indices: Tensor
    shape: tuple[int, int]

    @classmethod
    def of(cls, inputs: dict[str, Any]) -> Layout:
        """Derive the layout from the keyword arguments of a forward pass, packed or padded."""
        ids, packing = inputs["input_ids"], inputs.get("packing")
        if packing is None:
            real = inputs["attention_mask"].bool()
            indices = real.reshape(-1).nonzero()[:, 0]
            begins = real.new_zeros(len(real), dtype=torch.long)
        else:
            columns = max(packing.columns, 1)
            grid = packing.indices.view(-1, columns)
            row, column = packing.positions // columns, packing.positions % columns
            # A row shares only a prefix with another row, so its last token is its own.
            ends = row.new_zeros(len(grid)).scatter_reduce(0, row, column + 1, "amax")
            real = torch.arange(columns, device=ids.device) < ends[:, None]
            indices = grid[real]
            begins = ends.scatter_reduce(0, row, column, "amin")
        kept = real.any(1)
        lengths, skipped = real.sum(1)[kept].tolist(), begins[kept].tolist()
        raw = ids.reshape(-1)[indices].cpu().numpy().tobytes()
        edges = [TOKEN_BYTES * edge for edge in accumulate(lengths, initial=0)]
        keys = [raw[start:end] for start, end in pairwise(edges)]
        return cls(keys, skipped, lengths, indices, (ids.shape[0], ids.shape[1]))

    def rows(self, hidden: Tensor) -> Sequence[Tensor]:
        """Split hidden states into float[t, H] for each row."""
        flat = hidden.reshape(-1, hidden.shape[-1]).index_select(0, self.indices)
        each: tuple[Tensor, ...] = flat.split(list(self.lengths))
        return each

    def lay(self, rows: Sequence[Tensor]) -> Tensor:
        """Assemble hidden states, zero at padding, from float[t, H] for each row."""
        flat = torch.cat([row[skipped:] for row, skipped in zip(rows, self.skipped, strict=True)])
        height, width = self.shape
        if len(flat) < height * width:
            flat = flat.new_zeros(height * width, flat.shape[-1]).index_copy(0, self.indices, flat)
        return flat.view(height, width, -1)
