"""Remember keys and values of sequences that are continued together, a prompt's only once for all that continue it.

Attention to the prompt and attention to what was drawn are two calls of the same kernel, which says how much weight
each had in all (log-sum-exp); so their results can be put together exactly. Every prompt's keys are then read once a
token, instead of once for each of its sequences.

Shapes: B sequences, D distinct prompts, S sequences of the prompt with most of them, P tokens of the longest prompt.
"""

from __future__ import annotations

import torch
from torch import Tensor

from rlcore.models.decoding.prompt_states import PromptStates, States, gathered


class SharedCache:
    """Attend in the place of a packed batch's attention function (`rlcore.models.speed.packing`), one query a sequence.

    Everything is in float32: attention kernels for narrow types are slow on processors.

    Args:
        prompts: what was read of the prompts.
        room: tokens each will be continued by at most.
    """

    def __init__(self, prompts: PromptStates, room: int) -> None:
        self.columns, self.calls, places = prompts.columns, [0], prompts.places
        self._prompts = [(gathered(keys, places), gathered(values, places)) for keys, values in prompts.read]
        self._drawn: list[States] = []
        self._num_drawn = 0
        self._absent: Tensor | None = None
        if prompts.is_ragged:
            missing = torch.arange(self.columns) >= prompts.lengths[:, None]
            self._absent = torch.zeros(missing.shape).masked_fill_(missing, float("-inf"))[:, None, None]
        for keys, _ in self._prompts:
            shape = (len(prompts.copies), keys.shape[1], room, keys.shape[3])
            self._drawn.append((keys.new_empty(shape), keys.new_empty(shape)))
        self._seat(prompts.copies)

    def _seat(self, continued: Tensor) -> None:
        """Give each sequence a seat among S at the prompt it continues."""
        self._continued = continued
        counts = torch.bincount(continued, minlength=len(self._prompts[0][0]))
        order = continued.argsort(stable=True)
        rank = torch.empty_like(order)
        rank[order] = torch.arange(len(order)) - (counts.cumsum(0) - counts)[continued[order]]
        self._most = int(counts.max())
        self._seats = continued * self._most + rank

    def fill(self, holes: Tensor, movers: Tensor, num_rows: int) -> None:
        """Put the sequences at `movers`, long[M], into `holes`, long[M], and go on with the first `num_rows` only."""
        end = self._num_drawn
        for i, (keys, values) in enumerate(self._drawn):
            for states in (keys, values):
                states[:, :, :end].index_copy_(0, holes, states[:, :, :end].index_select(0, movers))
            self._drawn[i] = keys[:num_rows], values[:num_rows]
        continued = self._continued.index_copy(0, holes, self._continued[movers])[:num_rows]
        left, renumbered = continued.unique(return_inverse=True)
        if 2 * len(left) <= len(self._prompts[0][0]):
            self._prompts = [(keys[left], values[left]) for keys, values in self._prompts]
            self._absent = None if self._absent is None else self._absent[left]
            continued = renumbered
        self._seat(continued)

    def attend(self, query: Tensor, key: Tensor, value: Tensor, *, dropout: float, scaling: float | None) -> Tensor:  # noqa: ARG002  nothing is dropped
        """Remember keys and values, [1, groups, B, width], and attend: [1, B, heads, width]."""
        layer = (self.calls[0] - 1) % len(self._drawn)
        keys, values = self._drawn[layer]
        keys[:, :, self._num_drawn] = key[0].transpose(0, 1)
        values[:, :, self._num_drawn] = value[0].transpose(0, 1)
        end = self._num_drawn + 1
        if layer == len(self._drawn) - 1:
            self._num_drawn = end
        # Heads that share keys stand side by side, as if they were queries of one head.
        asked = query[0].transpose(0, 1).float().reshape(keys.shape[0], keys.shape[1], -1, keys.shape[3])
        own, own_weight = _weighed(asked, keys[:, :, :end], values[:, :, :end], None, scaling)
        prompt, prompt_weight = self._attend_to_prompts(layer, asked, scaling)
        share = torch.sigmoid(prompt_weight - own_weight)[..., None]
        return torch.lerp(own, prompt, share).reshape(1, len(own), query.shape[1], -1).to(query.dtype)

    def _attend_to_prompts(self, layer: int, asked: Tensor, scaling: float | None) -> tuple[Tensor, Tensor]:
        """Attend with queries, float[B, groups, G, width], to prompts alone: the same shape, and the weight of each."""
        keys, values = self._prompts[layer]
        num, groups, _, width = keys.shape
        seated = asked.new_zeros(num * self._most, *asked.shape[1:]).index_copy_(0, self._seats, asked)
        seated = seated.view(num, self._most, groups, -1, width).transpose(1, 2).reshape(num, groups, -1, width)
        mixed, weight = _weighed(seated, keys, values, self._absent, scaling)
        mixed = mixed.view(num, groups, self._most, -1, width).transpose(1, 2).flatten(0, 1)
        weight = weight.view(num, groups, self._most, -1).transpose(1, 2).flatten(0, 1)
        return mixed.index_select(0, self._seats), weight.index_select(0, self._seats)


def _weighed(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scaling: float | None) -> tuple[Tensor, Tensor]:
    """Attend in float32, and say the log of the sum of the exponentials of each query's scores, [B, heads, T]."""
    if mask is not None:
        mask = mask.expand(-1, q.shape[1], q.shape[2], -1)
    out: tuple[Tensor, Tensor] = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(  # noqa: SLF001  torch says log-sum-exp nowhere else
        q, k, v, attn_mask=mask, scale=scaling
    )
    return out
