"""Cache the outputs of a model's frozen bottom blocks within a training step.

If the embeddings and the bottom blocks do not train, their outputs for a sequence are the same in every epoch, and the
same for the policy and its reference. They are cached by the sequence's tokens for one training step. In a forward pass
over cached sequences the frozen blocks return the cached outputs; masks, positions, top blocks, norm and head run as
usual. A token's hidden states depend only on earlier tokens, so a sequence also counts as cached if it is a prefix of a
cached one. The cache is emptied after each step, so that a resumed run computes the same numbers.

Also in this file: map the hidden states of a packed or padded batch to its sequences and back.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from itertools import accumulate, pairwise
from typing import Any

import attrs
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedModel

from rlcore.errors import ModelError
from rlcore_transformers.models.freezing import decoder_blocks, runs_before
from rlcore_transformers.models.speed import NothingToGain, TechniqueRefused
from rlcore_transformers.models.speed.activations import probe_tokens, probing, require_same
from rlcore_transformers.models.speed.packing import pack, padded_inputs

TOKEN_BYTES = torch.long.itemsize


@attrs.frozen(eq=False)
class Layout:
    """Where the sequences of a batch are in the hidden states of its forward pass, `[1, N, H]` or `[B, T, H]`.

    Attributes:
        keys: each row's real tokens, as bytes; empty rows are left out.
        skipped: number of first tokens that a row shares with a row before it, which holds their hidden states.
        lengths: number of tokens of each row.
        indices: long[M], index in the flattened hidden states of each row's tokens, row after row.
        shape: (1, N) or (B, T).
    """

    keys: Sequence[bytes]
    skipped: Sequence[int]
    lengths: Sequence[int]
    indices: Tensor
    shape: tuple[int, int]

    @classmethod
    def of(cls, inputs: dict[str, Any]) -> Layout:
        """Derive the layout from the keyword arguments of a forward pass, packed or padded."""
        ids, packing = inputs["input_ids"], inputs.get("packing")
        if packing is None:
            real = inputs["attention_mask"].bool()
            indices = real.reshape(-1).nonzero()[:, 0]
            begins = real.new_zeros(len(real), dtype=torch.long)
        else:
            columns = max(packing.columns, 1)
            grid = packing.indices.view(-1, columns)
            row, column = packing.positions // columns, packing.positions % columns
            # A row shares only a prefix with another row, so its last token is its own.
            ends = row.new_zeros(len(grid)).scatter_reduce(0, row, column + 1, "amax")
            real = torch.arange(columns, device=ids.device) < ends[:, None]
            indices = grid[real]
            begins = ends.scatter_reduce(0, row, column, "amin")
        kept = real.any(1)
        lengths, skipped = real.sum(1)[kept].tolist(), begins[kept].tolist()
        raw = ids.reshape(-1)[indices].cpu().numpy().tobytes()
        edges = [TOKEN_BYTES * edge for edge in accumulate(lengths, initial=0)]
        keys = [raw[start:end] for start, end in pairwise(edges)]
        return cls(keys, skipped, lengths, indices, (ids.shape[0], ids.shape[1]))

    def rows(self, hidden: Tensor) -> Sequence[Tensor]:
        """Split hidden states into float[t, H] for each row."""
        flat = hidden.reshape(-1, hidden.shape[-1]).index_select(0, self.indices)
        each: tuple[Tensor, ...] = flat.split(list(self.lengths))
        return each

    def lay(self, rows: Sequence[Tensor]) -> Tensor:
        """Assemble hidden states, zero at padding, from float[t, H] for each row."""
        flat = torch.cat([row[skipped:] for row, skipped in zip(rows, self.skipped, strict=True)])
        height, width = self.shape
        if len(flat) < height * width:
            flat = flat.new_zeros(height * width, flat.shape[-1]).index_copy(0, self.indices, flat)
        return flat.view(height, width, -1)


class _Reached(Exception):
    """Ends a forward pass above the trunk."""


class TrunkCache:
    """Outputs of a trunk by sequence, up to a number of bytes; the first ones are kept.

    Args:
        room: bytes.
    """

    def __init__(self, room: float) -> None:
        self._room = room
        self._keys: list[bytes] = []
        self._kept: dict[bytes, Tensor] = {}

    def find(self, key: bytes) -> Tensor | None:
        """Return float[t, H] for a sequence of t tokens; None if neither it nor a longer one is cached."""
        at = bisect_left(self._keys, key)  # keys with this prefix start here
        if at == len(self._keys) or not self._keys[at].startswith(key):
            return None
        return self._kept[self._keys[at]][: len(key) // TOKEN_BYTES]

    def keep(self, read: dict[bytes, Tensor]) -> None:
        """Add float[t, H] for each sequence, or none of them if they do not all fit."""
        size = sum(each.nbytes for each in read.values())
        if size > self._room:
            return
        self._room -= size
        self._kept |= read
        self._keys = sorted(self._kept)


class FrozenTrunk:
    """The frozen bottom blocks of a model, as `make_trunk` finds them, and the cache of their outputs.

    Args:
        depth: number of blocks.
        parameters: all parameters used before the blocks above.
        room: bytes of the cache.
        share: compute what several sequences begin with once (`rlcore_transformers.models.speed.packing`).
    """

    def __init__(self, depth: int, parameters: Sequence[nn.Parameter], room: float, *, share: bool = True) -> None:
        self.depth, self._room, self._share = depth, room, share
        self._below = tuple(parameters)
        self._memory: TrunkCache | None = None
        self._returns: int | None = None

    @contextmanager
    def caching(self) -> Iterator[None]:
        """Cache outputs while the context is open, unless a parameter of the trunk trains by now."""
        before, frozen = self._memory, not any(parameter.requires_grad for parameter in self._below)
        self._memory = TrunkCache(self._room) if frozen else None
        try:
            yield
        finally:
            self._memory = before

    @contextmanager
    def replaying(self, model: PreTrainedModel, inputs: dict[str, object]) -> Iterator[None]:
        """Let the trunk's blocks in `model` return cached outputs in the one forward pass inside this context.

        If no sequence of the batch is cached, the blocks run and their outputs are cached. If some are, the others are
        computed first, in a forward pass of their own.

        Args:
            model: the policy's model or its reference, without active dropout.
            inputs: the keyword arguments of the forward pass.
        """
        layout = None if self._memory is None else Layout.of(inputs)
        if self._memory is None or layout is None or not layout.keys:
            yield
            return
        found = {key: self._memory.find(key) for key in layout.keys}
        if all(rows is None for rows in found.values()):
            with self._watching(model) as seen:
                yield
            self._memory.keep(dict(zip(layout.keys, layout.rows(seen[0].detach()), strict=True)))
            return
        unknown = [key for key, rows in found.items() if rows is None]
        if unknown:
            read = self._read(model, unknown, is_packed="packing" in inputs)
            self._memory.keep(read)
            found |= read
        known = [rows for key in layout.keys if (rows := found[key]) is not None]
        with self._replaced(model, layout.lay(known)):
            yield

    def follower(self) -> TrunkFollower:
        """Return a trunk that replays what this one has cached, in passes that have no others inside."""
        return TrunkFollower(self)

    def needs_pass(self, inputs: dict[str, object]) -> bool:
        """Return whether some but not all sequences of a batch are cached, so that the others need a pass first."""
        layout = None if self._memory is None else Layout.of(inputs)
        if self._memory is None or layout is None:
            return False
        return len({self._memory.find(key) is None for key in layout.keys}) > 1

    @contextmanager
    def _replaced(self, model: PreTrainedModel, hidden: Tensor) -> Iterator[None]:
        """Make every block of the trunk return `hidden` without computing anything."""
        output = hidden if self._returns is None else (hidden, *[None] * (self._returns - 1))
        blocks = decoder_blocks(model)[: self.depth]
        own = [vars(block).pop("forward", None) for block in blocks]
        for block in blocks:
            vars(block)["forward"] = lambda *_, **__: output
        try:
            yield
        finally:
            for block, forward in zip(blocks, own, strict=True):
                del vars(block)["forward"]
                if forward is not None:
                    vars(block)["forward"] = forward

    @contextmanager
    def _watching(self, model: PreTrainedModel, then: Callable[[], None] = lambda: None) -> Iterator[list[Tensor]]:
        """Record the trunk's output in a forward pass, and call `then`."""
        seen: list[Tensor] = []

        def note(_: nn.Module, __: object, output: Any) -> None:
            self._returns = len(output) if isinstance(output, tuple) else None
            seen.append(output if self._returns is None else output[0])
            then()

        handle = decoder_blocks(model)[self.depth - 1].register_forward_hook(note)
        try:
            yield seen
        finally:
            handle.remove()

    @torch.no_grad()
    def _read(self, model: PreTrainedModel, keys: Sequence[bytes], *, is_packed: bool) -> dict[bytes, Tensor]:
        """Run only the trunk on sequences: float[t, H] for each."""
        ids = [torch.frombuffer(bytearray(key), dtype=torch.long) for key in keys]
        lengths = torch.tensor([len(row) for row in ids], device=model.device)
        tokens = pad_sequence(ids, batch_first=True).to(model.device)
        mask = torch.arange(tokens.shape[1], device=model.device) < lengths[:, None]
        packed = pack(tokens, mask, share=self._share) if is_packed else None
        with self._watching(model, _stop) as seen, suppress(_Reached):
            model(**(padded_inputs(tokens, mask) if packed is None else packed.inputs))
        flat = seen[0][mask] if packed is None else seen[0][0].index_select(0, packed.node)
        return dict(zip(keys, flat.split(lengths.tolist()), strict=True))


class TrunkFollower:
    """A trunk that runs the frozen blocks in the pass itself, unless every sequence of the batch is cached.

    Processes that divide the weights run each block together, and may differ in which sequences they have cached.
    """

    def __init__(self, trunk: FrozenTrunk) -> None:
        self._trunk = trunk

    def __deepcopy__(self, _: object) -> TrunkFollower:
        return self

    def replaying(self, model: PreTrainedModel, inputs: dict[str, object]) -> AbstractContextManager[None]:
        """Replay cached outputs in the one forward pass inside this context, or cache them."""
        return nullcontext() if self._trunk.needs_pass(inputs) else self._trunk.replaying(model, inputs)

    def caching(self) -> AbstractContextManager[None]:
        """Cache outputs while the context is open."""
        return self._trunk.caching()

    def follower(self) -> TrunkFollower:
        """Return this trunk."""
        return self


def _stop() -> None:
    raise _Reached


def make_trunk(model: PreTrainedModel, *, above: int, packs: bool, room: float, share: bool = True) -> FrozenTrunk:
    """Return the frozen trunk of a model.

    Args:
        model: the policy's.
        above: number of top blocks that do not belong to the trunk even if they are frozen.
        packs: whether the model also runs packed.
        room: bytes of the cache.
        share: compute equal prefixes of several sequences once.

    Raises:
        TechniqueRefused: the model has no frozen trunk, or replaying its outputs is not exact.
    """
    if not room:
        raise TechniqueRefused("trunk_cache_gb is 0")
    if all(parameter.requires_grad for parameter in model.parameters()):
        raise NothingToGain("nothing is frozen")
    try:
        blocks = decoder_blocks(model)
    except ModelError:
        raise TechniqueRefused("no list of blocks was found") from None
    trains = [any(parameter.requires_grad for parameter in block.parameters()) for block in blocks]
    depth = min([*trains, True].index(True), len(blocks) - above)
    if depth <= 0:
        raise NothingToGain("the bottom block trains")
    below = [*runs_before(model, blocks[min(depth, len(blocks) - 1)]), *blocks[:depth].parameters()]
    trunk = FrozenTrunk(depth, below, room, share=share)
    if any(parameter.requires_grad for parameter in below):
        raise TechniqueRefused("embeddings or other parameters below the blocks train")
    with probing(model):
        _replay(trunk, model, packs=packs)
    return trunk


def _replay(trunk: FrozenTrunk, model: PreTrainedModel, *, packs: bool) -> None:
    """Compare logits with the trunk replayed to the model's own, in each layout: of two rows, after one of them.

    Raises:
        TechniqueRefused: they differ.
    """
    tokens = probe_tokens(model, 5)
    mask = torch.tensor([[True] * 4 + [False], [False, True, True, False, False]], device=model.device)
    for lay_out in [padded_inputs] + [_packed_inputs] * packs:
        real = mask if lay_out is padded_inputs else slice(None)
        expected = model(**lay_out(tokens, mask)).logits[real].float()
        with trunk.caching():
            for inputs in (lay_out(tokens[:1], mask[:1]), lay_out(tokens, mask)):
                with trunk.replaying(model, inputs):
                    seen = model(**inputs).logits
        require_same(model, "logits with the trunk replayed", seen[real].float(), expected)


def _packed_inputs(tokens: Tensor, mask: Tensor) -> dict[str, object]:
    return pack(tokens, mask, share=True).inputs
