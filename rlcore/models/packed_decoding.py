"""Continue prompts token by token with no padding anywhere, in models whose attention may run packed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from rlcore.models.block_cache import BlockCache
from rlcore.models.decoding import Prefill, ReadHeads, narrowed
from rlcore.models.packing import pack
from rlcore.models.sequence_cache import SequenceCache
from rlcore.models.shared_cache import SharedCache
from rlcore.protocols import DecodeStep

LEAST_ROWS = 32
"""Sequences from which on this decoder is the faster one, measured in one thread."""
LEAST_SHARED = 16
"""Tokens from which on a prompt's keys and values are better held once for its sequences, two on average at least."""
MOST_SHORT = 24
"""Tokens of a sequence, prompt included, up to which they are better held with sequences last than in blocks."""


def pays(model: PreTrainedModel, prompts: Sequence[Sequence[int]]) -> bool:
    """Tell whether `PackedDecoder` is the faster one for a batch."""
    return model.device.type == "cpu" and len(prompts) >= LEAST_ROWS


class PackedDecoder:
    """Read distinct prompts packed, then one token of every sequence at a time, packed as well.

    Only attention knows which token is whose (`rlcore.models.block_cache`); transformers' own caches and masks take
    no part. Nothing is recorded for autograd, and the model is left in the mode it is in; attention has no dropout.

    Args:
        model: one that attends as `rlcore.models.packing` has it.
        prompts: B sequences of token ids, each with one at least.
        max_new_tokens: how often `step` may be called.
        heads: what is said besides logits.
        autocast: makes the context of precision that the model is run in.

    Attributes:
        cache: what is remembered of the sequences, once the prompts are read.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        prompts: Sequence[Sequence[int]],
        *,
        max_new_tokens: int,
        heads: ReadHeads | None = None,
        autocast: Callable[[], AbstractContextManager[Any]] = nullcontext,
    ) -> None:
        self._model, self._heads, self._autocast = model, heads, autocast
        self._room = max_new_tokens
        self.cache: BlockCache | SequenceCache | SharedCache
        device = next(model.parameters()).device
        distinct = {prompt: i for i, prompt in enumerate(dict.fromkeys(tuple(prompt) for prompt in prompts))}
        self._lengths = torch.tensor([len(prompt) for prompt in distinct], device=device)
        width = int(self._lengths.max())
        padded = [list(prompt) + [0] * (width - len(prompt)) for prompt in distinct]
        self._mask = torch.arange(width, device=device) < self._lengths[:, None]
        packed = pack(torch.tensor(padded, device=device), self._mask, share=True)
        self._inputs, self._node = packed.inputs, packed.node
        copies = torch.tensor([distinct[tuple(prompt)] for prompt in prompts], device=device)
        order = self._lengths[copies].argsort(descending=True, stable=True)
        self._copies, self._places = copies[order], order.argsort()
        self._positions = self._lengths[self._copies][None]

    @torch.no_grad()
    def start(self) -> DecodeStep:
        """Read the prompts."""
        reading = Prefill(self._inputs["packing"])
        self._inputs["packing"] = reading
        said = self._read(self._node[self._lengths.cumsum(0) - 1])
        places = self._node[(self._mask.reshape(-1).cumsum(0) - 1)].view(self._mask.shape)
        self.cache = self._kind()(reading.states, places, self._lengths, self._copies, self._room)
        self._inputs["packing"] = self.cache
        return said.rows(self._copies[self._places])

    def _kind(self) -> type[BlockCache | SequenceCache | SharedCache]:
        """Choose the cache that is the fastest for these prompts."""
        longest = self._mask.shape[1]
        if longest >= LEAST_SHARED and 2 * len(self._lengths) <= len(self._copies):
            return SharedCache
        return SequenceCache if longest + self._room <= MOST_SHORT else BlockCache

    @torch.no_grad()
    def step(self, tokens: Tensor) -> DecodeStep:
        """Read one more token of every sequence: long[B]."""
        tokens = torch.empty_like(tokens).index_copy_(0, self._places, tokens)
        self._inputs |= {"input_ids": tokens[None], "position_ids": self._positions}
        self._positions = self._positions + 1
        return self._read(self._places)

    @torch.no_grad()
    def keep(self, rows: Tensor) -> None:
        """Go on with the sequences at `rows` (long[K], ascending) only."""
        places = self._places[rows]
        # Sequences beyond the new end move into places left free before it: they are few, copying all is slow.
        moving = places >= len(rows)
        is_free = torch.ones_like(rows, dtype=torch.bool)
        is_free[places[~moving]] = False
        holes, movers = is_free.nonzero()[:, 0], places[moving]
        self.cache.fill(holes, movers, len(rows))
        self._positions = self._positions.index_copy(1, holes, self._positions[:, movers])[:, : len(rows)]
        self._places = places.masked_scatter(moving, holes)

    def _read(self, rows: Tensor) -> DecodeStep:
        """Run the model; say what it says at `rows` of the packed row only, everywhere if None."""
        with self._autocast(), narrowed(self._model.get_output_embeddings(), rows) as hidden:
            logits = self._model(**self._inputs).logits[0]
            if self._heads is None:
                return DecodeStep(logits, None)
            return DecodeStep(logits, *self._heads(hidden[0]))
