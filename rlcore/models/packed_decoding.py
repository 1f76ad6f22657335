"""Continue prompts token by token with no padding anywhere, in models whose attention may run packed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from rlcore.models.decoding import ReadHeads, narrowed
from rlcore.models.packing import pack
from rlcore.models.sequence_cache import SequenceCache
from rlcore.models.shared_cache import SharedCache
from rlcore.protocols import DecodeStep

LEAST_ROWS = 48
MOST_TOKENS = 32
LEAST_SHARED = 16
"""Where this decoder is the faster one, measured in one thread: batches of so many sequences at least, whose prompts,
of so many tokens at least, are shared by two sequences each on average; or whose prompts are shorter, and continued by
so many tokens at most."""
MOST_NARROW = 128
"""Tokens held with each sequence at most, where weights are narrow and longer prompts are not shared: attention kernels
for these types are slow on processors, and this decoder attends in float32."""


def pays(model: PreTrainedModel, prompts: Sequence[Sequence[int]], max_new_tokens: int) -> bool:
    """Tell whether `PackedDecoder` is the faster one for a batch."""
    if model.device.type != "cpu" or len(prompts) < LEAST_ROWS:
        return False
    longest = max(len(prompt) for prompt in prompts)
    if _is_shared(prompts):
        return True
    if longest < LEAST_SHARED:
        return max_new_tokens <= MOST_TOKENS
    return model.dtype != torch.float32 and max_new_tokens + longest <= MOST_NARROW


def _is_shared(prompts: Sequence[Sequence[int]]) -> bool:
    distinct = {tuple(prompt) for prompt in prompts}
    return 2 * len(distinct) <= len(prompts) and max(len(prompt) for prompt in distinct) >= LEAST_SHARED


class PackedDecoder:
    """Read distinct prompts packed, then one token of every sequence at a time, packed as well.

    Only attention knows which token is whose (`rlcore.models.sequence_cache`); transformers' own caches and masks take
    no part. Nothing is recorded for autograd, and the model is left in the mode it is in; attention has no dropout.

    Args:
        model: one that attends as `rlcore.models.packing` has it.
        prompts: B sequences of token ids, each with one at least.
        max_new_tokens: how often `step` may be called.
        heads: what is said besides logits.
        autocast: makes the context of precision that the model is run in.
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
        self._room, self._share = max_new_tokens, _is_shared(prompts)
        device = next(model.parameters()).device
        distinct = {prompt: i for i, prompt in enumerate(dict.fromkeys(tuple(prompt) for prompt in prompts))}
        self._copies = torch.tensor([distinct[tuple(prompt)] for prompt in prompts], device=device)
        self._places: Tensor | None = None
        lengths = torch.tensor([len(prompt) for prompt in distinct], device=device)
        width = int(lengths.max())
        padded = [list(prompt) + [0] * (width - len(prompt)) for prompt in distinct]
        mask = torch.arange(width, device=device) < lengths[:, None]
        self._inputs = pack(torch.tensor(padded, device=device), mask).inputs
        self._last = lengths.cumsum(0) - 1
        self._positions = lengths[self._copies][None]
        num_layers = model.config.get_text_config().num_hidden_layers
        kind = SharedCache if self._share else SequenceCache
        self._cache = kind(self._inputs["packing"], lengths, num_layers)
        self._inputs["packing"] = self._cache

    @torch.no_grad()
    def start(self) -> DecodeStep:
        """Read the prompts."""
        said = self._read(self._last)
        self._cache.begin(self._copies, self._room)
        return said.rows(self._copies)

    @torch.no_grad()
    def step(self, tokens: Tensor) -> DecodeStep:
        """Read one more token of every sequence: long[B]."""
        if self._places is not None:
            tokens = torch.empty_like(tokens).index_copy_(0, self._places, tokens)
        self._inputs |= {"input_ids": tokens[None], "position_ids": self._positions}
        self._positions = self._positions + 1
        return self._read(self._places)

    @torch.no_grad()
    def keep(self, rows: Tensor) -> None:
        """Go on with the sequences at `rows` (long[K], ascending) only."""
        places = rows if self._places is None else self._places[rows]
        # Sequences beyond the new end move into places left free before it: they are few, copying all is slow.
        moving = places >= len(rows)
        is_free = torch.ones_like(rows, dtype=torch.bool)
        is_free[places[~moving]] = False
        holes, movers = is_free.nonzero()[:, 0], places[moving]
        self._cache.fill(holes, movers, len(rows))
        self._positions = self._positions.index_copy(1, holes, self._positions[:, movers])[:, : len(rows)]
        self._places = places.masked_scatter(moving, holes)

    def _read(self, rows: Tensor | None) -> DecodeStep:
        """Run the model; say what it says at `rows` of the packed row only, everywhere if None."""
        with self._autocast(), narrowed(self._model.get_output_embeddings(), rows) as hidden:
            logits = self._model(**self._inputs).logits[0]
            if self._heads is None:
                return DecodeStep(logits, None)
            return DecodeStep(logits, *self._heads(hidden[0]))
