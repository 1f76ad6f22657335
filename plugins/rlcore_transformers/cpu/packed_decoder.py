"""Decode prompts without padding, in models whose attention may run packed.

Also in this file: A key-value cache in blocks of columns, contiguous in memory, for decoding a packed batch on a CPU.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor
from torch.nn.functional import pad

from rlcore.protocols import DecoderRequest, DecodeStep
from rlcore_transformers.models.decoding.cache import Prefill, States
from rlcore_transformers.models.heads import head_reads
from rlcore_transformers.models.speed.packing import pack


class PromptStates(NamedTuple):
    """Keys and values of D distinct prompts of up to P tokens, which B sequences continue.

    Attributes:
        layers: keys and values of the N packed tokens, float[1, groups, N, width], layer by layer.
        token_index: long[D, P], the packed token at each position of the prompts; any token after a prompt's end.
        lengths: long[D], of the prompts.
        copies: long[B], the prompt of each sequence.
    """

    layers: list[States]
    token_index: Tensor
    lengths: Tensor
    copies: Tensor

    @property
    def columns(self) -> int:
        """Return the length of the longest prompt: P."""
        return self.token_index.shape[1]

    @property
    def is_ragged(self) -> bool:
        """Return whether prompts differ in length."""
        return int(self.lengths.min()) < self.columns

    @property
    def start_lengths(self) -> Tensor:
        """Return the length of each sequence's prompt: long[B]."""
        return self.lengths[self.copies]


def gather_states(states: Tensor, index: Tensor) -> Tensor:
    """Gather packed states, float[1, groups, N, width], at `index`, long[K, W]: float32[K, groups, W, width]."""
    rows = states[0].transpose(0, 1)[index].transpose(1, 2)
    return rows.to(torch.float32).contiguous()


WIDTH = 32
"""Columns of a block. Fewer need more calls; with more, sequences that begin within a block read more padding."""


class BlockCache:
    """The cache and the attention function of a packed batch (`packing`) while it is decoded.

    Everything is in float32: many CPUs have slow matrix products in lower precision.

    Args:
        prompts: keys and values of the prompts; the sequences with the longest prompts come first.
        room: the largest number of new tokens of a sequence.

    Attributes:
        blocks: keys and values of each layer, block by block, float[K, groups, WIDTH, width] of the first K sequences.
    """

    def __init__(self, prompts: PromptStates, room: int) -> None:
        self.columns, self.calls = prompts.columns, [0]
        self._held, self._end = self.columns, self.columns + room
        lengths = prompts.start_lengths
        missing = torch.arange(self.columns, device=lengths.device) >= lengths[:, None]
        self._hidden = missing[:, None, None] if prompts.is_ragged else None
        self.blocks: list[list[States]] = [[] for _ in prompts.layers]
        for begin in range(0, self.columns, WIDTH):
            reaching = len(lengths) if begin + WIDTH > self.columns else int((lengths > begin).sum())
            index = prompts.token_index[prompts.copies[:reaching], begin : begin + WIDTH]
            room = min(begin + WIDTH, self._end) - begin - index.shape[1]
            for blocks, each in zip(self.blocks, prompts.layers, strict=True):
                keys, values = (pad(gather_states(states, index), (0, 0, 0, room)) for states in each)
                blocks.append((keys, values))

    def fill(self, holes: Tensor, movers: Tensor, num_rows: int) -> None:
        """Move the sequences at rows `movers`, long[M], to rows `holes`, long[M], then drop rows from `num_rows` on.

        A hole has a lower row than the sequence moved into it, so every block of that sequence includes the hole.
        """
        for blocks in self.blocks:
            for i, block in enumerate(blocks):
                inside = movers < len(block[0])
                for states in block:
                    states.index_copy_(0, holes[inside], states.index_select(0, movers[inside]))
                blocks[i] = block[0][:num_rows], block[1][:num_rows]
        if self._hidden is not None:
            self._hidden = self._hidden.index_copy(0, holes, self._hidden[movers])[:num_rows]

    def join(self, prompts: PromptStates) -> None:
        """Add sequences after the present ones; their prompts end in the newest column.

        Args:
            prompts: of J sequences, none longer than the longest prompt of the first batch.
        """
        self._end = sys.maxsize  # joined sequences may need more columns than the first ones
        hidden = self._drop_unused(self._hidden_columns(len(self.blocks[0][-1][0])))
        rows, begins = len(hidden), self._held - prompts.start_lengths
        nth = torch.arange(1, len(begins) + 1, device=begins.device)
        for i in range(len(self.blocks[0])):
            reaching = int(((begins < (i + 1) * WIDTH) * nth).max())
            if not reaching:
                continue
            columns = torch.arange(i * WIDTH, (i + 1) * WIDTH, device=begins.device)
            positions = (columns - begins[:reaching, None]).clamp(0, prompts.columns - 1)
            index = prompts.token_index[prompts.copies[:reaching]].gather(1, positions)
            for blocks, each in zip(self.blocks, prompts.layers, strict=True):
                keys, values = (_with_room(states, rows + reaching) for states in blocks[i])
                keys[rows:], values[rows:] = (gather_states(states, index) for states in each)
                blocks[i] = keys, values
        joined = torch.arange(self._held, device=begins.device) < begins[:, None]
        self._hidden = torch.cat([hidden, joined])[:, None, None]

    def _hidden_columns(self, rows: int) -> Tensor:
        """Return which columns up to the newest do not belong to each sequence: bool[B, T]."""
        hidden = torch.zeros(rows, self._held, dtype=torch.bool, device=self.blocks[0][0][0].device)
        if self._hidden is not None:
            hidden[:, : self._hidden.shape[3]] = self._hidden[:, 0, 0]
        return hidden

    def _drop_unused(self, hidden: Tensor) -> Tensor:
        """Drop leading blocks that no sequence uses, up to room for the longest prompt; return the remaining mask."""
        unused = int(hidden.all(0).long().cumprod(0).sum())
        dropped = min(unused, self._held - self.columns) // WIDTH
        for blocks in self.blocks:
            del blocks[:dropped]
        self._held -= dropped * WIDTH
        return hidden[:, dropped * WIDTH :]

    def attend(self, query: Tensor, key: Tensor, value: Tensor, *, dropout: float, scaling: float | None) -> Tensor:  # noqa: ARG002  there is no dropout
        """Append keys and values, [1, groups, B, width], and attend with one query a sequence: [1, B, heads, width]."""
        blocks = self.blocks[(self.calls[0] - 1) % len(self.blocks)]
        column = self._held % WIDTH
        if not column:
            room = min(WIDTH, self._end - self._held)
            blocks.append((_empty_block(key, room), _empty_block(value, room)))
        for states, new in zip(blocks[-1], (key, value), strict=True):
            states[:, :, column] = new[0].transpose(0, 1)
        scaled = query[0].transpose(0, 1) * (query.shape[-1] ** -0.5 if scaling is None else scaling)
        with torch.autocast(scaled.device.type, enabled=False):
            mixed = self._mix(scaled.float(), blocks, column + 1)
        if blocks is self.blocks[-1]:
            self._held += 1
        return mixed.to(query.dtype)[None]

    def _mix(self, scaled: Tensor, blocks: list[States], written: int) -> Tensor:
        """Attend with scaled queries, float[B, heads, width], to all blocks, of the last one to `written` columns."""
        rows, heads, width = scaled.shape
        groups = blocks[-1][0].shape[1]
        queries = scaled.reshape(rows * groups, heads // groups, width)
        matrices = [(keys.flatten(0, 1), values.flatten(0, 1)) for keys, values in blocks]
        widths = [keys.shape[1] for keys, _ in matrices]
        scores = queries.new_empty(rows * groups, heads // groups, sum(widths))
        parts = scores.split(widths, 2)
        for part, (keys, _) in zip(parts, matrices, strict=True):
            part[: len(keys)] = torch.bmm(queries[: len(keys)], keys.transpose(1, 2))
        parts[-1][..., written:] = float("-inf")
        if self._hidden is not None:
            prompts = scores.view(rows, groups, -1, sum(widths))[..., : self._hidden.shape[3]]
            prompts.masked_fill_(self._hidden, float("-inf"))
        *weights, newest = scores.softmax(2).split(widths, 2)
        mixed = torch.bmm(newest, matrices[-1][1])
        for part, (_, values) in zip(weights, matrices, strict=False):
            mixed[: len(values)].baddbmm_(part[: len(values)], values)
        return mixed.view(rows, heads, -1)


def _empty_block(new: Tensor, room: int) -> Tensor:
    """Return a block for keys or values of float[1, groups, B, width]: float32[B, groups, room, width].

    It is filled with zeros: unwritten columns are masked, but an attention weight of 0 does not hide a NaN.
    """
    _, groups, rows, width = new.shape
    return new.new_zeros(rows, groups, room, width, dtype=torch.float32)


def _with_room(states: Tensor, rows: int) -> Tensor:
    """Return the block with `WIDTH` columns and `rows` rows, in its own storage if that is large enough."""
    _, groups, columns, width = states.shape
    if columns < WIDTH:
        states = pad(states, (0, 0, 0, WIDTH - columns))
    if states.untyped_storage().nbytes() >= rows * groups * WIDTH * width * states.element_size():
        return states.as_strided((rows, groups, WIDTH, width), states.stride())
    return pad(states, (0, 0, 0, 0, 0, 0, 0, rows - len(states)))


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

    def _prefill(self, prompts: Sequence[Sequence[int]]) -> tuple[dict[str, object], PromptStates, DecodeStep]:
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
