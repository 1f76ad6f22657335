"""A key-value cache that is allocated once, for sequences that are decoded together and finish at different times.

`Prefill` collects what a packed prefill writes into it.

Also in this file: sample with a copy of the weights in lower precision (`model.sampling_dtype`), on machines that are
faster in it.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import cast

import attrs
import torch
from torch import Tensor, nn
from transformers import DynamicCache, PreTrainedConfig, PreTrainedModel
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

from rlcore.protocols import Decoder, DecodeStep
from rlcore.protocols.learners import JoiningDecoder, joins
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
        *args: object,  # noqa: ARG002 - other kinds of layers use it
        **kwargs: object,  # noqa: ARG002 - the same
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


class LowPrecisionCopy:
    """A copy of a model with weights of lower precision; buffers, such as rotary frequencies, keep their types.

    Args:
        model: the model to copy. The copy is made on first use, and then stays in memory.
        dtype: the type of the copy's weights.
    """

    def __init__(self, model: PreTrainedModel, dtype: torch.dtype) -> None:
        self._model, self._dtype = model, dtype
        self._copy: PreTrainedModel | None = None

    @torch.no_grad()
    def fresh(self) -> PreTrainedModel:
        """Return the copy, in evaluation mode, after copying the model's present weights into it."""
        if self._copy is None or self._copy.device != self._model.device:
            # The memo holds new parameters, so deepcopy never copies those of full precision.
            memo: dict[int, object] = {id(p): self._empty(p) for p in self._model.parameters()}
            self._copy = copy.deepcopy(self._model, memo).eval()
        for low, full in zip(self._copy.parameters(), self._model.parameters(), strict=True):
            low.copy_(full)
        for kept, current in zip(self._copy.buffers(), self._model.buffers(), strict=True):
            kept.copy_(current)
        return self._copy

    def _empty(self, weights: Tensor) -> nn.Parameter:
        dtype = self._dtype if weights.is_floating_point() else weights.dtype
        return nn.Parameter(torch.empty_like(weights, dtype=dtype), requires_grad=False)


@attrs.frozen(eq=False)
class LowPrecisionDecoder:
    """A decoder whose steps are marked as inexact: its logits are those of the copy, not of the policy.

    Attributes:
        decoder: the decoder of the copy.
    """

    decoder: Decoder

    def start(self) -> DecodeStep:
        """Prefill the prompts."""
        return attrs.evolve(self.decoder.start(), is_exact=False)

    def step(self, tokens: Tensor) -> DecodeStep:
        """Run the model on the next token of every sequence: long[B]."""
        return attrs.evolve(self.decoder.step(tokens), is_exact=False)

    def keep(self, rows: Tensor) -> None:
        """Keep the sequences at `rows` (long[K], ascending) and drop the others."""
        self.decoder.keep(rows)

    @property
    def joins(self) -> bool:
        """Return whether further prompts can join."""
        return joins(self.decoder) is not None

    def join(self, prompts: Sequence[Sequence[int]]) -> DecodeStep:
        """Prefill further prompts, whose sequences come after the present ones."""
        return attrs.evolve(cast("JoiningDecoder", self.decoder).join(prompts), is_exact=False)
