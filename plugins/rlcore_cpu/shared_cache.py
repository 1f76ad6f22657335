"""A key-value cache that holds each prompt once for all sequences that continue it, for decoding on a CPU.

Attention to the prompt and attention to the generated tokens are two calls of the same kernel. The kernel returns the
log-sum-exp of each query's scores, so the two results combine exactly. Each prompt's keys are read once a token,
instead of once for each of its sequences.

Shapes: B sequences, D distinct prompts, S sequences of the prompt with most of them, P tokens of the longest prompt.
"""

from __future__ import annotations

import torch
from torch import Tensor

from rlcore_cpu.prompt_states import PromptStates, gather_states
from rlcore_transformers.models.decoding.cache import States


class SharedCache:
    """The cache and the attention function of a packed batch (`packing`) while it is decoded.

    Everything is in float32: attention kernels in lower precision are slow on CPUs.

    Args:
        prompts: keys and values of the prompts.
        room: the largest number of new tokens of a sequence.
    """

    def __init__(self, prompts: PromptStates, room: int) -> None:
        self.columns, self.calls, index = prompts.columns, [0], prompts.token_index
        self._prompts = [(gather_states(keys, index), gather_states(values, index)) for keys, values in prompts.layers]
        self._generated: list[States] = []
        self._num_generated = 0
        self._hidden: Tensor | None = None
        if prompts.is_ragged:
            missing = torch.arange(self.columns) >= prompts.lengths[:, None]
            self._hidden = torch.zeros(missing.shape).masked_fill_(missing, float("-inf"))[:, None, None]
        for keys, _ in self._prompts:
            shape = (len(prompts.copies), keys.shape[1], room, keys.shape[3])
            self._generated.append((keys.new_empty(shape), keys.new_empty(shape)))
        self._assign_slots(prompts.copies)

    def _assign_slots(self, prompt_index: Tensor) -> None:
        """Assign each sequence one of the S query slots of its prompt."""
        self._prompt_index = prompt_index
        counts = torch.bincount(prompt_index, minlength=len(self._prompts[0][0]))
        order = prompt_index.argsort(stable=True)
        rank = torch.empty_like(order)
        rank[order] = torch.arange(len(order)) - (counts.cumsum(0) - counts)[prompt_index[order]]
        self._num_slots = int(counts.max())
        self._slots = prompt_index * self._num_slots + rank

    def fill(self, holes: Tensor, movers: Tensor, num_rows: int) -> None:
        """Move the sequences at rows `movers`, long[M], to rows `holes`, long[M], then drop rows from `num_rows` on."""
        end = self._num_generated
        for i, (keys, values) in enumerate(self._generated):
            for states in (keys, values):
                states[:, :, :end].index_copy_(0, holes, states[:, :, :end].index_select(0, movers))
            self._generated[i] = keys[:num_rows], values[:num_rows]
        prompt_index = self._prompt_index.index_copy(0, holes, self._prompt_index[movers])[:num_rows]
        left, renumbered = prompt_index.unique(return_inverse=True)
        if 2 * len(left) <= len(self._prompts[0][0]):
            self._prompts = [(keys[left], values[left]) for keys, values in self._prompts]
            self._hidden = None if self._hidden is None else self._hidden[left]
            prompt_index = renumbered
        self._assign_slots(prompt_index)

    def attend(self, query: Tensor, key: Tensor, value: Tensor, *, dropout: float, scaling: float | None) -> Tensor:  # noqa: ARG002  there is no dropout
        """Append keys and values, [1, groups, B, width], and attend with one query a sequence: [1, B, heads, width]."""
        layer = (self.calls[0] - 1) % len(self._generated)
        keys, values = self._generated[layer]
        keys[:, :, self._num_generated] = key[0].transpose(0, 1)
        values[:, :, self._num_generated] = value[0].transpose(0, 1)
        end = self._num_generated + 1
        if layer == len(self._generated) - 1:
            self._num_generated = end
        # Query heads that share a key head become queries of one head.
        queries = query[0].transpose(0, 1).float().reshape(keys.shape[0], keys.shape[1], -1, keys.shape[3])
        own, own_lse = _attend(queries, keys[:, :, :end], values[:, :, :end], None, scaling)
        prompt, prompt_lse = self._attend_to_prompts(layer, queries, scaling)
        share = torch.sigmoid(prompt_lse - own_lse)[..., None]
        return torch.lerp(own, prompt, share).reshape(1, len(own), query.shape[1], -1).to(query.dtype)

    def _attend_to_prompts(self, layer: int, queries: Tensor, scaling: float | None) -> tuple[Tensor, Tensor]:
        """Attend with queries, float[B, groups, G, width], to prompts only: the same shape, and log-sum-exps."""
        keys, values = self._prompts[layer]
        num, groups, _, width = keys.shape
        slots = queries.new_zeros(num * self._num_slots, *queries.shape[1:]).index_copy_(0, self._slots, queries)
        slots = slots.view(num, self._num_slots, groups, -1, width).transpose(1, 2).reshape(num, groups, -1, width)
        mixed, lse = _attend(slots, keys, values, self._hidden, scaling)
        mixed = mixed.view(num, groups, self._num_slots, -1, width).transpose(1, 2).flatten(0, 1)
        lse = lse.view(num, groups, self._num_slots, -1).transpose(1, 2).flatten(0, 1)
        return mixed.index_select(0, self._slots), lse.index_select(0, self._slots)


def _attend(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, scaling: float | None) -> tuple[Tensor, Tensor]:
    """Attend in float32; return the result and the log-sum-exp of each query's scores, [B, heads, T]."""
    if mask is not None:
        mask = mask.expand(-1, q.shape[1], q.shape[2], -1)
    out: tuple[Tensor, Tensor] = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(  # noqa: SLF001  no public function of torch returns log-sum-exps
        q, k, v, attn_mask=mask, scale=scaling
    )
    return out
