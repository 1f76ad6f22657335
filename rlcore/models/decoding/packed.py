"""Continue prompts token by token with no padding anywhere, in models whose attention may run packed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, cast

import torch
from torch import Tensor
from transformers import PreTrainedModel

from rlcore.models.decoding.block_cache import BlockCache
from rlcore.models.decoding.causal import Prefill, ReadHeads
from rlcore.models.decoding.prompt_states import PromptStates
from rlcore.models.decoding.sequence_cache import SequenceCache
from rlcore.models.decoding.shared_cache import SharedCache
from rlcore.models.head_input import head_reads
from rlcore.models.settings import ALL_ON, SpeedConfig
from rlcore.models.speed.packing import pack
from rlcore.protocols import DecodeStep

LEAST_ROWS = 32
"""Sequences from which on this decoder is the faster one, measured in one thread."""
LEAST_JOINED = 8
"""The same where at least as many prompts wait as begin, and join them as places become free."""
LEAST_SHARED = 16
"""Tokens from which on a prompt's keys and values are better held once for its sequences, two on average at least."""
MOST_SHORT = 24
"""Tokens of a sequence, prompt included, up to which they are better held with sequences last than in blocks."""


def pays(
    model: PreTrainedModel,
    prompts: Sequence[Sequence[int]],
    *,
    max_new_tokens: int = 0,
    waiting: int = 0,
    speed: SpeedConfig = ALL_ON,
) -> bool:
    """Tell whether `PackedDecoder` is switched on and the faster one for a batch that `waiting` prompts may join."""
    if not speed.packed_decoding:
        return False
    least = LEAST_ROWS
    if waiting >= len(prompts) and _kind(prompts, max_new_tokens, speed) is BlockCache:
        least = min(least, LEAST_JOINED)
    return model.device.type == "cpu" and len(prompts) >= least


def _kind(
    prompts: Sequence[Sequence[int]], max_new_tokens: int, speed: SpeedConfig
) -> type[BlockCache | SequenceCache | SharedCache]:
    """Choose the cache that is the fastest for these prompts."""
    longest = max(len(prompt) for prompt in prompts)
    num_distinct = len({tuple(prompt) for prompt in prompts})
    if speed.shared_prompts and longest >= LEAST_SHARED and 2 * num_distinct <= len(prompts):
        return SharedCache
    return SequenceCache if longest + max_new_tokens <= MOST_SHORT else BlockCache


class PackedDecoder:
    """Read distinct prompts packed, then one token of every sequence at a time, packed as well.

    Only attention knows which token is whose (`rlcore.models.decoding.block_cache`); transformers' own caches and masks
    take no part. Nothing is recorded for autograd, and the model is left in the mode it is in; attention has
    no dropout.

    Args:
        model: one that attends as `rlcore.models.speed.packing` has it.
        prompts: B sequences of token ids, each with one at least.
        max_new_tokens: how often `step` may be called.
        heads: what is said besides logits.
        autocast: makes the context of precision that the model is run in.
        speed: which techniques of speed are switched on.

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
        speed: SpeedConfig = ALL_ON,
    ) -> None:
        self._speed = speed
        self._model, self._heads, self._autocast = model, heads, autocast
        self._output = model.get_output_embeddings()
        self._prompts, self._room = prompts, max_new_tokens
        self.cache: BlockCache | SequenceCache | SharedCache

    @torch.no_grad()
    def start(self) -> DecodeStep:
        """Read the prompts."""
        inputs, states, said = self._prefill(self._prompts)
        order = states.begun.argsort(descending=True, stable=True)
        states = states._replace(copies=states.copies[order])
        self._places, self._positions = order.argsort(), states.begun[None]
        self.cache = _kind(self._prompts, self._room, self._speed)(states, self._room)
        self._inputs = inputs | {"packing": self.cache}
        return said

    @property
    def joins(self) -> bool:
        """Tell whether it takes further prompts in."""
        return isinstance(self.cache, BlockCache)

    @torch.no_grad()
    def join(self, prompts: Sequence[Sequence[int]]) -> DecodeStep:
        """Read further prompts, whose sequences go behind the present ones."""
        _, states, said = self._prefill(prompts)
        cast("BlockCache", self.cache).join(states)
        first = len(self._places)
        behind = torch.arange(first, first + len(prompts), device=self._places.device)
        self._places = torch.cat([self._places, behind])
        self._positions = torch.cat([self._positions, states.begun[None]], 1)
        return said

    def _prefill(self, prompts: Sequence[Sequence[int]]) -> tuple[dict[str, Any], PromptStates, DecodeStep]:
        """Read what is distinct of the prompts; return what the model was run on, their states, and what it says."""
        device = next(self._model.parameters()).device
        distinct = {prompt: i for i, prompt in enumerate(dict.fromkeys(tuple(prompt) for prompt in prompts))}
        lengths = torch.tensor([len(prompt) for prompt in distinct], device=device)
        width = int(lengths.max())
        padded = [list(prompt) + [0] * (width - len(prompt)) for prompt in distinct]
        mask = torch.arange(width, device=device) < lengths[:, None]
        inputs, node = pack(torch.tensor(padded, device=device), mask, share=True, speed=self._speed)
        reading = Prefill(inputs["packing"])
        said = self._say(inputs | {"packing": reading}, node[lengths.cumsum(0) - 1])
        places = node[(mask.reshape(-1).cumsum(0) - 1)].view(mask.shape)
        copies = torch.tensor([distinct[tuple(prompt)] for prompt in prompts], device=device)
        return inputs, PromptStates(reading.states, places, lengths, copies), said.rows(copies)

    @torch.no_grad()
    def step(self, tokens: Tensor) -> DecodeStep:
        """Read one more token of every sequence: long[B]."""
        tokens = torch.empty_like(tokens).index_copy_(0, self._places, tokens)
        self._inputs |= {"input_ids": tokens[None], "position_ids": self._positions}
        self._positions = self._positions + 1
        return self._say(self._inputs, self._places)

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

    def _say(self, inputs: dict[str, Any], rows: Tensor) -> DecodeStep:
        """Run the model; say what it says at `rows` of the packed row only."""
        with self._autocast(), head_reads(self._output, lambda hidden: hidden.index_select(1, rows)) as hidden:
            logits = self._model(**inputs).logits[0]
            if self._heads is None:
                return DecodeStep(logits, None)
            return DecodeStep(logits, *self._heads(hidden[0][0]))
