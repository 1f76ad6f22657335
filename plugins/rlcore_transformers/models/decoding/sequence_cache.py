"""A key-value cache with sequences as the last dimension, `[T, heads, width, B]`, for short sequences on a CPU.

With one query a sequence, attention becomes elementwise products and sums over vectors of sequences, which SIMD units
compute; attention kernels start anew for each sequence and head. This helps small models only: in wide ones
`rlcore_transformers.models.decoding.block_cache` is as fast or faster.

Shapes: B sequences, P tokens of the longest prompt, T tokens in the cache.
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from rlcore_transformers.models.decoding.prompt_states import PromptStates, gather_states

BLOCK = 2**18
"""Products computed before they are summed: about as many as fit in a core's cache."""


class SequenceCache:
    """The cache and the attention function of a packed batch (`packing`) while it is decoded.

    Everything is in float32. `BlockCache` is faster for sequences of more than a few dozen tokens.

    Args:
        prompts: keys and values of the prompts.
        room: the largest number of new tokens of a sequence.
    """

    def __init__(self, prompts: PromptStates, room: int) -> None:
        self.columns, self.calls = prompts.columns, [0]
        index = prompts.token_index[prompts.copies]
        self._held = [(_buffer(keys, index, room), _buffer(values, index, room)) for keys, values in prompts.layers]
        self._num_held = self.columns
        self._hidden: Tensor | None = None
        if prompts.is_ragged:
            missing = torch.arange(self.columns)[:, None] >= prompts.start_lengths
            self._hidden = torch.zeros(missing.shape).masked_fill_(missing, float("-inf"))

    def fill(self, holes: Tensor, movers: Tensor, num_rows: int) -> None:
        """Move the sequences at rows `movers`, long[M], to rows `holes`, long[M], then drop rows from `num_rows` on."""
        end = self._num_held
        for i, (keys, values) in enumerate(self._held):
            for states in (keys[:end], values[:end]):
                states.index_copy_(3, holes, states.index_select(3, movers))
            self._held[i] = keys[..., :num_rows], values[..., :num_rows]
        if self._hidden is not None:
            self._hidden = self._hidden.index_copy(1, holes, self._hidden[:, movers])[:, :num_rows]

    def attend(self, query: Tensor, key: Tensor, value: Tensor, *, dropout: float, scaling: float | None) -> Tensor:  # noqa: ARG002  there is no dropout
        """Append keys and values, [1, groups, B, width], and attend with one query a sequence: [1, B, heads, width]."""
        layer = (self.calls[0] - 1) % len(self._held)
        keys, values = self._held[layer]
        keys[self._num_held] = key[0].transpose(1, 2)
        values[self._num_held] = value[0].transpose(1, 2)
        end = self._num_held + 1
        if layer == len(self._held) - 1:
            self._num_held = end
        queries = query[0] * (query.shape[-1] ** -0.5 if scaling is None else scaling)
        mixed = self._mix(queries, keys[:end], values[:end])
        return mixed.permute(2, 0, 1).to(query.dtype)[None]

    def _mix(self, queries: Tensor, keys: Tensor, values: Tensor) -> Tensor:
        """Attend with scaled queries, float[heads, B, width], to all tokens: float[heads, width, B]."""
        heads, rows, width = queries.shape
        groups = keys.shape[1]
        across = queries.float().transpose(1, 2).contiguous().view(groups, heads // groups, width, rows)
        scores = across.new_empty(len(keys), groups, heads // groups, rows)
        step = max(1, BLOCK // across.numel())
        blocks = [slice(at, at + step) for at in range(0, len(keys), step)]
        for block in blocks:
            torch.sum(keys[block, :, None] * across, 3, out=scores[block])
        if self._hidden is not None:
            scores[: self.columns] += self._hidden[:, None, None]
        weights = scores.softmax(0)
        parts = [(values[block, :, None] * weights[block, :, :, None]).sum(0) for block in blocks]
        return functools.reduce(Tensor.add_, parts).view(heads, width, rows)


def _buffer(states: Tensor, index: Tensor, room: int) -> Tensor:
    """Return float32[P + room, groups, width, B]; the first P hold the packed states at `index`, long[B, P]."""
    rows = gather_states(states, index)
    _, groups, length, width = rows.shape
    buffer = rows.new_empty(length + room, groups, width, len(rows))
    buffer[:length] = rows.permute(2, 1, 3, 0)
    return buffer
