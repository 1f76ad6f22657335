"""Decode prompts without padding, in models whose attention may run packed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor

from rlcore.protocols import DecoderRequest, DecodeStep
from rlcore_transformers.cpu.block_cache import BlockCache, PromptStates, SharedCache
from rlcore_transformers.models.decoding.cache import Prefill
from rlcore_transformers.models.heads import head_reads
from rlcore_transformers.models.speed.packing import pack

MIN_ROWS = 32
"""Sequences from which this decoder is faster than `CausalDecoder`, measured in one thread."""
MIN_JOINED_ROWS = 8
"""The same if at least as many prompts wait to join as begin."""
MIN_SHARED_PROMPT = 16
"""Tokens of the longest prompt from which `SharedCache` is fastest, with at least two sequences a prompt on average."""


def pays(request: DecoderRequest) -> bool:
    """Return whether `PackedDecoder` is switched on and the faster one for a batch on a CPU."""
    if not request.speed.packed_decoding:
        return False
    num_rows, least = len(request.prompts), MIN_ROWS
    if request.waiting >= num_rows and _fastest_cache(request) is BlockCache:
        least = min(least, MIN_JOINED_ROWS)
    return num_rows >= least


def _fastest_cache(request: DecoderRequest) -> type[BlockCache | SharedCache]:
    """Return the fastest cache for these prompts."""
    prompts = request.prompts
    longest = max(len(prompt) for prompt in prompts)
    num_distinct = len({tuple(prompt) for prompt in prompts})
    if request.speed.shared_prompts and longest >= MIN_SHARED_PROMPT and 2 * num_distinct <= len(prompts):
        return SharedCache
    return BlockCache


class PackedDecoder:
    """Prefill distinct prompts packed, then decode one token of every sequence at a time, packed as well.

    The attention function alone separates sequences (`block_cache` and its siblings); caches and
    masks of `transformers` are not used. No gradients are recorded, the model keeps its mode, and attention has no
    dropout.

    Args:
        request: the prompts, each with one token at least, and a model of `transformers` whose attention may run packed
            (`rlcore_transformers.models.speed.packing`).

    Attributes:
        cache: keys and values of the sequences, once the prompts are prefilled.
    """

    def __init__(self, request: DecoderRequest) -> None:
        self._request, self._model, self._heads = request, request.model, request.read_heads
        self._output = self._model.get_output_embeddings()
        self.cache: BlockCache | SharedCache

    @torch.no_grad()
    def start(self) -> DecodeStep:
        """Prefill the prompts."""
        inputs, states, outputs = self._prefill(self._request.prompts)
        order = states.start_lengths.argsort(descending=True, stable=True)
        states = states._replace(copies=states.copies[order])
        self._rows, self._positions = order.argsort(), states.start_lengths[None]
        self.cache = _fastest_cache(self._request)(states, self._request.max_new_tokens)
        self._inputs = inputs | {"packing": self.cache}
        return outputs

    @property
    def joins(self) -> bool:
        """Return whether further prompts can join."""
        return isinstance(self.cache, BlockCache)

    @torch.no_grad()
    def join(self, prompts: Sequence[Sequence[int]]) -> DecodeStep:
        """Prefill further prompts, whose sequences come after the present ones."""
        _, states, outputs = self._prefill(prompts)
        cast("BlockCache", self.cache).join(states)
        first = len(self._rows)
        joined = torch.arange(first, first + len(prompts), device=self._rows.device)
        self._rows = torch.cat([self._rows, joined])
        self._positions = torch.cat([self._positions, states.start_lengths[None]], 1)
        return outputs

    def _prefill(self, prompts: Sequence[Sequence[int]]) -> tuple[dict[str, Any], PromptStates, DecodeStep]:
        """Run the distinct prompts; return the model's inputs, the prompts' states and the sequences' outputs."""
        device = self._request.device
        distinct = {prompt: i for i, prompt in enumerate(dict.fromkeys(tuple(prompt) for prompt in prompts))}
        lengths = torch.tensor([len(prompt) for prompt in distinct], device=device)
        width = int(lengths.max())
        padded = [list(prompt) + [0] * (width - len(prompt)) for prompt in distinct]
        mask = torch.arange(width, device=device) < lengths[:, None]
        inputs, node = pack(torch.tensor(padded, device=device), mask, share=True, speed=self._request.speed)
        prefill = Prefill(inputs["packing"])
        outputs = self._forward(inputs | {"packing": prefill}, node[lengths.cumsum(0) - 1])
        index = node[(mask.reshape(-1).cumsum(0) - 1)].view(mask.shape)
        copies = torch.tensor([distinct[tuple(prompt)] for prompt in prompts], device=device)
        return inputs, PromptStates(prefill.states, index, lengths, copies), outputs.rows(copies)

    @torch.no_grad()
    def step(self, tokens: Tensor) -> DecodeStep:
        """Run the model on the next token of every sequence: long[B]."""
        tokens = torch.empty_like(tokens).index_copy_(0, self._rows, tokens)
        self._inputs |= {"input_ids": tokens[None], "position_ids": self._positions}
        self._positions = self._positions + 1
        return self._forward(self._inputs, self._rows)

    @torch.no_grad()
    def keep(self, rows: Tensor) -> None:
        """Keep the sequences at `rows` (long[K], ascending) and drop the others."""
        kept = self._rows[rows]
        # Sequences beyond the new end move to free rows before it: they are few, and copying all sequences is slow.
        moving = kept >= len(rows)
        is_free = torch.ones_like(rows, dtype=torch.bool)
        is_free[kept[~moving]] = False
        holes, movers = is_free.nonzero()[:, 0], kept[moving]
        self.cache.fill(holes, movers, len(rows))
        self._positions = self._positions.index_copy(1, holes, self._positions[:, movers])[:, : len(rows)]
        self._rows = kept.masked_scatter(moving, holes)

    def _forward(self, inputs: dict[str, Any], rows: Tensor) -> DecodeStep:
        """Run the model; compute outputs at the indices `rows` of the packed sequence only."""
        with self._request.autocast(), head_reads(self._output, lambda hidden: hidden.index_select(1, rows)) as hidden:
            logits = self._model(**inputs).logits[0]
            if self._heads is None:
                return DecodeStep(logits, None)
            return DecodeStep(logits, *self._heads(hidden[0][0]))
