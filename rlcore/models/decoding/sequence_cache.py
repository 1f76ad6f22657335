"""Remember keys and values of sequences that are continued together, laid out for a processor's vector units.

They are held sequences last, `[T, heads, width, B]`: with one query a sequence, scores and mixtures are then plain
products and sums over whole vectors of sequences, where attention kernels start anew for each sequence and head.

Shapes: B sequences, P tokens of the longest prompt, T tokens held with each sequence.
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor

from rlcore.models.decoding.prompt_states import PromptStates, gathered

BLOCK = 2**18
"""Numbers multiplied before they are summed: about what stays in a core's cache."""


class SequenceCache:
    """Attend in the place of a packed batch's attention function (`rlcore.models.speed.packing`), one query a sequence.

    Everything is in float32, as in `rlcore.models.decoding.block_cache`, which is faster where more than a few dozen
    tokens are held with each sequence.

    Args:
        prompts: what was read of the prompts.
        room: tokens each will be continued by at most.
    """

    def __init__(self, prompts: PromptStates, room: int) -> None:
        self.columns, self.calls = prompts.columns, [0]
        picked = prompts.places[prompts.copies]
        self._held = [(_laid_out(keys, picked, room), _laid_out(values, picked, room)) for keys, values in prompts.read]
        self._num_held = self.columns
        self._absent: Tensor | None = None
        if prompts.is_ragged:
            missing = torch.arange(self.columns)[:, None] >= prompts.begun
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

    def attend(self, query: Tensor, key: Tensor, value: Tensor, *, dropout: float, scaling: float | None) -> Tensor:  # noqa: ARG002  nothing is dropped
        """Remember keys and values, [1, groups, B, width], and attend: [1, B, heads, width]."""
        layer = (self.calls[0] - 1) % len(self._held)
        keys, values = self._held[layer]
        keys[self._num_held] = key[0].transpose(1, 2)
        values[self._num_held] = value[0].transpose(1, 2)
        end = self._num_held + 1
        if layer == len(self._held) - 1:
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


def _laid_out(states: Tensor, picked: Tensor, room: int) -> Tensor:
    """Return float32[P + room, groups, width, B] with packed states at `picked`, long[B, P], at its beginning."""
    rows = gathered(states, picked)
    _, groups, length, width = rows.shape
    buffer = rows.new_empty(length + room, groups, width, len(rows))
    buffer[:length] = rows.permute(2, 1, 3, 0)
    return buffer
