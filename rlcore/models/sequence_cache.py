"""Remember keys and values of sequences that are continued together, laid out for a processor's vector units.

They are held sequences last, `[T, heads, width, B]`: with one query a sequence, scores and mixtures are then plain
products and sums over whole vectors of sequences, where attention kernels start anew for each sequence and head.

Shapes: B sequences, D distinct prompts, P tokens of the longest, T tokens held with each sequence, N packed tokens.
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from rlcore.models.packing import Packing

BLOCK = 2**18
"""Numbers multiplied before they are summed: about what stays in a core's cache."""


class SequenceCache:
    """Attend in the place of a packed batch's attention function (`rlcore.models.packing`), one query a sequence.

    The prompts come first, packed; then `begin` says which prompt each sequence continues, and then every pass is one
    token of each. Everything but the prompts' first pass is in float32.

    Args:
        packing: how the prompts are packed; they stand at the left ends of their rows.
        lengths: long[D], the prompts'.
        num_layers: how often attention runs in one pass.
    """

    def __init__(self, packing: Packing, lengths: Tensor, num_layers: int) -> None:
        self.columns, self.calls = packing.columns, packing.calls
        self._packing, self._lengths, self._num_layers = packing, lengths, num_layers
        self._read: list[tuple[Tensor, Tensor]] = []
        self._held: list[tuple[Tensor, Tensor]] = []
        self._num_held = 0
        self._absent: Tensor | None = None

    def begin(self, copies: Tensor, room: int) -> None:
        """Have sequences continue the prompts that were read.

        Args:
            copies: long[B], the prompt of each.
            room: tokens each will be continued by at most.
        """
        for keys, values in self._read:
            self._held.append((_laid_out(keys, copies, room), _laid_out(values, copies, room)))
        self._read, self._num_held = [], self.columns
        if int(self._lengths.min()) < self.columns:
            missing = torch.arange(self.columns)[:, None] >= self._lengths[copies]
            self._absent = torch.zeros(missing.shape).masked_fill_(missing, float("-inf"))

    def fill(self, holes: Tensor, movers: Tensor, num_rows: int) -> None:
        """Put the sequences at `movers`, long[M], into `holes`, long[M], and go on with the first `num_rows` only."""
        end = self._num_held
        for i, (keys, values) in enumerate(self._held):
            for states in (keys[:end], values[:end]):
                states.index_copy_(3, holes, states.index_select(3, movers))
            self._held[i] = keys[..., :num_rows], values[..., :num_rows]
        if self._absent is not None:
            self._absent = self._absent.index_copy(1, holes, self._absent[:, movers])[:, :num_rows]

    def attend(self, query: Tensor, key: Tensor, value: Tensor, *, dropout: float, scaling: float | None) -> Tensor:
        """Remember keys and values, [1, heads, N, width], and attend: [1, N, heads, width]."""
        if not self._held:
            self._read.append((self._packing.unpack(key), self._packing.unpack(value)))
            return self._packing.attend(query, key, value, dropout=dropout, scaling=scaling)
        layer = (self.calls[0] - 1) % self._num_layers
        keys, values = self._held[layer]
        keys[self._num_held] = key[0].transpose(1, 2)
        values[self._num_held] = value[0].transpose(1, 2)
        end = self._num_held + 1
        if layer == self._num_layers - 1:
            self._num_held = end
        asked = query[0] * (query.shape[-1] ** -0.5 if scaling is None else scaling)
        said = self._mix(asked, keys[:end], values[:end])
        return said.permute(2, 0, 1).to(query.dtype)[None]

    def _mix(self, asked: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """Attend with scaled queries, float[heads, B, width], to everything: float[heads, width, B]."""
        heads, rows, width = asked.shape
        groups = keys.shape[1]
        across = asked.float().transpose(1, 2).contiguous().view(groups, heads // groups, width, rows)
        scores = across.new_empty(len(keys), groups, heads // groups, rows)
        step = max(1, BLOCK // across.numel())
        blocks = [slice(at, at + step) for at in range(0, len(keys), step)]
        for block in blocks:
            torch.sum(keys[block, :, None] * across, 3, out=scores[block])
        if self._absent is not None:
            scores[: self.columns] += self._absent[:, None, None]
        weights = scores.softmax(0)
        parts = [(values[block, :, None] * weights[block, :, :, None]).sum(0) for block in blocks]
        return functools.reduce(Tensor.add_, parts).view(heads, width, rows)


def _laid_out(states: Tensor, copies: Tensor, room: int) -> Tensor:
    """Return float32[P + room, heads, width, B] with the prompts' [D, heads, P, width] at its beginning."""
    _, heads, length, width = states.shape
    buffer = states.new_empty(length + room, heads, width, len(copies), dtype=torch.float32)
    buffer[:length] = states.index_select(0, copies).permute(2, 1, 3, 0)
    return buffer
