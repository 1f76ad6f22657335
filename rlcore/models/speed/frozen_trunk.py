"""Run the frozen bottom of a model once for each sequence of a step, however often the step scores it.

Where the embeddings and the bottom blocks do not train, what they make of a sequence is the same in every epoch, and
the same for the policy and its reference. Within a step of the trainer it is kept by the sequence's tokens, and a pass
over a sequence that is known runs the blocks above alone: those below hand on what they gave before, and all else
(masks, positions, the top blocks, norm and head) is the model's own forward pass. What is said of a token depends on
the tokens before it only, so a sequence is known too where a longer one that begins with it is. With the step all is
forgotten, so that a run that is resumed computes what it would have computed.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from transformers import PreTrainedModel

from rlcore.errors import ModelError
from rlcore.models.freezing import decoder_blocks, runs_before
from rlcore.models.speed import Refused
from rlcore.models.speed.exactness import probe_tokens, probing, require_same
from rlcore.models.speed.packing import pack, padded_inputs
from rlcore.models.speed.trunk_layout import TOKEN_BYTES, Layout


class _Reached(Exception):
    """End a pass that need not go on above the trunk."""


class TrunkCache:
    """Keep what a trunk has made of sequences, as many as there is room for; those that come first stay.

    Args:
        room: bytes.
    """

    def __init__(self, room: float) -> None:
        self._room = room
        self._keys: list[bytes] = []
        self._kept: dict[bytes, Tensor] = {}

    def find(self, key: bytes) -> Tensor | None:
        """Return float[t, H] for a sequence of t tokens, None where neither it nor a longer one is known."""
        at = bisect_left(self._keys, key)  # keys that begin with this one stand from here on
        if at == len(self._keys) or not self._keys[at].startswith(key):
            return None
        return self._kept[self._keys[at]][: len(key) // TOKEN_BYTES]

    def keep(self, read: dict[bytes, Tensor]) -> None:
        """Keep float[t, H] of each sequence, or of none of them where they do not fit."""
        size = sum(each.nbytes for each in read.values())
        if size > self._room:
            return
        self._room -= size
        self._kept |= read
        self._keys = sorted(self._kept)


class FrozenTrunk:
    """Stand for the bottom blocks of a model that do not train; `make_trunk` finds them.

    Args:
        depth: how many blocks.
        parameters: all that take part in a pass before the blocks above.
        room: bytes for what is remembered.
        share: compute what several sequences begin with once (`rlcore.models.speed.prefixes`).
    """

    def __init__(self, depth: int, parameters: Sequence[nn.Parameter], room: float, *, share: bool = True) -> None:
        self.depth, self._room, self._share = depth, room, share
        self._below = tuple(parameters)
        self._memory: TrunkCache | None = None
        self._returns: int | None = None

    @contextmanager
    def caching(self) -> Iterator[None]:
        """Remember while the context is open, unless somebody has had the trunk train after all."""
        before, frozen = self._memory, not any(parameter.requires_grad for parameter in self._below)
        self._memory = TrunkCache(self._room) if frozen else None
        try:
            yield
        finally:
            self._memory = before

    @contextmanager
    def replaying(self, model: PreTrainedModel, inputs: dict[str, Any]) -> Iterator[None]:
        """Have the trunk's blocks in `model` hand on what is known of a batch, in the one pass in this context.

        Where nothing of it is known they run, and it is from then on; where some is, the rest is read before.

        Args:
            model: the policy's or its reference; it must not be noisy.
            inputs: the keyword arguments of the pass.
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

    @contextmanager
    def _replaced(self, model: PreTrainedModel, hidden: Tensor) -> Iterator[None]:
        """Have every block of the trunk return `hidden`, as it returns hidden states, and do nothing."""
        said = hidden if self._returns is None else (hidden, *[None] * (self._returns - 1))
        blocks = decoder_blocks(model)[: self.depth]
        own = [vars(block).pop("forward", None) for block in blocks]
        for block in blocks:
            vars(block)["forward"] = lambda *_, **__: said
        try:
            yield
        finally:
            for block, forward in zip(blocks, own, strict=True):
                del vars(block)["forward"]
                if forward is not None:
                    vars(block)["forward"] = forward

    @contextmanager
    def _watching(self, model: PreTrainedModel, then: Callable[[], None] = lambda: None) -> Iterator[list[Tensor]]:
        """Note what the trunk gives in a pass, and call `then`."""
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
        """Run the trunk alone over sequences: float[t, H] of each."""
        ids = [torch.frombuffer(bytearray(key), dtype=torch.long) for key in keys]
        lengths = torch.tensor([len(row) for row in ids], device=model.device)
        tokens = pad_sequence(ids, batch_first=True).to(model.device)
        mask = torch.arange(tokens.shape[1], device=model.device) < lengths[:, None]
        packed = pack(tokens, mask, share=self._share) if is_packed else None
        with self._watching(model, _stop) as seen, suppress(_Reached):
            model(**(padded_inputs(tokens, mask) if packed is None else packed.inputs))
        flat = seen[0][mask] if packed is None else seen[0][0].index_select(0, packed.node)
        return dict(zip(keys, flat.split(lengths.tolist()), strict=True))


def _stop() -> None:
    raise _Reached


def make_trunk(model: PreTrainedModel, *, above: int, packs: bool, room: float, share: bool = True) -> FrozenTrunk:
    """Return the frozen trunk of a model.

    Args:
        model: the policy's.
        above: blocks at the top that are not to be taken for the trunk, even if they are frozen.
        packs: the model runs packed too.
        room: bytes for what is remembered.
        share: compute what several sequences begin with once.

    Raises:
        Refused: the model has no frozen trunk, or replaying its outputs is not exact.
    """
    if not room:
        raise Refused("trunk_cache_gb is 0")
    if all(parameter.requires_grad for parameter in model.parameters()):
        raise Refused("nothing is frozen")
    try:
        blocks = decoder_blocks(model)
    except ModelError:
        raise Refused("no list of blocks was found") from None
    trains = [any(parameter.requires_grad for parameter in block.parameters()) for block in blocks]
    depth = min([*trains, True].index(True), len(blocks) - above)
    if depth <= 0:
        raise Refused("the bottom block trains")
    below = [*runs_before(model, blocks[min(depth, len(blocks) - 1)]), *blocks[:depth].parameters()]
    trunk = FrozenTrunk(depth, below, room, share=share)
    if any(parameter.requires_grad for parameter in below):
        raise Refused("embeddings or other parameters below the blocks train")
    with probing(model):
        _replay(trunk, model, packs=packs)
    return trunk


def _replay(trunk: FrozenTrunk, model: PreTrainedModel, *, packs: bool) -> None:
    """Compare logits with the trunk replayed to the model's own, in each layout: of two rows, after one of them.

    Raises:
        Refused: they differ.
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


def _packed_inputs(tokens: Tensor, mask: Tensor) -> dict[str, Any]:
    return pack(tokens, mask, share=True).inputs
