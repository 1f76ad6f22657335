"""A key-value cache that is allocated once, for sequences that are decoded together and finish at different times.

`Prefill` collects what a packed prefill writes into it.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor
from transformers import DynamicCache, PreTrainedConfig
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

from rlcore_transformers.models.speed.packing import Packing


class PreallocatedLayer(DynamicLayer):
    """One attention layer's keys and values, in buffers with room for every new token.

    A layer that grows by concatenation copies its contents for every new token; this one writes the new token in place
    and returns a view. The prompt's keys and values are kept as they are, so `reorder_cache` may still repeat rows; the
    buffers are allocated with the first token after the prompt.

    Args:
        capacity: the largest number of tokens, prompt included.
        is_sliding: whether transformers should build the mask of a sliding window for this layer.
    """

    def __init__(self, capacity: int, *, is_sliding: bool = False) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.capacity, self.is_sliding, self.length = capacity, is_sliding, 0
        self.keys: Tensor
        self.values: Tensor
        self._buffers: tuple[Tensor, Tensor] | None = None

    def update(
        self,
        key_states: Tensor,
        value_states: Tensor,
        *args: Any,  # noqa: ARG002 - other kinds of layers use it
        **kwargs: Any,  # noqa: ARG002 - the same
    ) -> tuple[Tensor, Tensor]:
        """Append the keys and values of new tokens, float[B, heads, T, D], and return those of all tokens."""
        if self.length == 0:
            self.lazy_initialization(key_states, value_states)
            self.keys, self.values, self.length = key_states, value_states, key_states.shape[-2]
            return self.keys, self.values
        if self._buffers is None:
            self._buffers = self._allocate(self.keys), self._allocate(self.values)
        keys, values = self._buffers
        start, self.length = self.length, self.length + key_states.shape[-2]
        keys[:, :, start : self.length] = key_states
        values[:, :, start : self.length] = value_states
        self.keys, self.values = keys[:, :, : self.length], values[:, :, : self.length]
        return self.keys, self.values

    def reorder_cache(self, beam_idx: Tensor) -> None:
        """Select the rows `beam_idx`, long[K], in place once the buffers are allocated; K <= B then."""
        if self.length == 0:
            return
        keys, values = self.keys.index_select(0, beam_idx), self.values.index_select(0, beam_idx)
        if self._buffers is not None:
            self._buffers = self._buffers[0][: len(beam_idx)], self._buffers[1][: len(beam_idx)]
            keys = self._buffers[0][:, :, : self.length].copy_(keys)
            values = self._buffers[1][:, :, : self.length].copy_(values)
        self.keys, self.values = keys, values

    def get_seq_length(self) -> int:
        """Return the number of tokens in the cache."""
        return self.length

    def _allocate(self, held: Tensor) -> Tensor:
        height, heads, length, width = held.shape
        buffer = held.new_empty(height, heads, max(self.capacity, length + 1), width)
        buffer[:, :, :length] = held
        return buffer


def make_cache(config: PreTrainedConfig, capacity: int, *, preallocate: bool = True) -> DynamicCache:
    """Make the cache transformers would, with every layer preallocated that can be.

    These are the layers with plain full attention, and those whose sliding window holds all of `capacity` tokens.
    Others (shorter windows, state spaces, convolutions, compressed keys) stay as transformers makes them.
    """
    cache = DynamicCache(config=config)
    if preallocate:
        cache.layers = [_preallocated(layer, capacity) or layer for layer in cache.layers]
    return cache


def _preallocated(layer: object, capacity: int) -> PreallocatedLayer | None:
    if type(layer) is DynamicLayer:
        return PreallocatedLayer(capacity)
    if type(layer) is DynamicSlidingWindowLayer and layer.sliding_window > capacity:
        return PreallocatedLayer(capacity, is_sliding=True)
    return None


States = tuple[Tensor, Tensor]
"""Keys and values of one layer."""


class Prefill:
    """The attention function of a packed prefill: it attends as `packing` does and keeps every layer's keys and values.

    Args:
        packing: of the prompts.

    Attributes:
        states: keys and values of each layer that has run, float[1, groups, N, width].
    """

    def __init__(self, packing: Packing) -> None:
        self._packing, self.columns, self.calls = packing, packing.columns, packing.calls
        self.states: list[States] = []

    def attend(self, query: Tensor, key: Tensor, value: Tensor, *, dropout: float, scaling: float | None) -> Tensor:
        """Attend as `Packing.attend` does."""
        self.states.append((key, value))
        return self._packing.attend(query, key, value, dropout=dropout, scaling=scaling)
