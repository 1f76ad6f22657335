"""Passes without gradients for which no process completes more than one block of the model at a time.

How many passes a process makes, and which blocks they run, depends on its own sequences. So before a block runs, all
processes agree on the one that is joined next: the first of those that any of them waits for. All of them join it;
those that wait for it run it, and the others free each of its tensors at once. A process that has finished joins blocks
until all have finished.

Also in this file: the groups in which torch's FSDP2 gathers the weights of a model: its blocks, and their norms.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import attrs
import torch
from torch import Tensor, nn

from rlcore.errors import ModelError
from rlcore_shard.shards import Shards

FINISHED = 2**31
"""What a process waits for that makes no further pass."""


@contextmanager
def by_block(learner: Any, shards: Sequence[Shards]) -> Iterator[None]:
    """Return a context in which weights are complete while they are needed; all processes enter and leave it together.

    Weights outside the blocks are complete throughout. Weights that are whole already stay so, and those whose
    addresses may not change are gathered. The copies of 16 bits that autocast makes of weights are freed after each
    block; those outside the blocks are made again when they are used next.

    Args:
        learner: the learner (`rlcore.protocols.Divisible`). Passes run its `module`, and what its method
            `frozen_modules` returns, if it has one.
        shards: its weights.
    """
    divided = [each for each in shards if not each.is_whole and not each.is_lent]
    for each in divided:
        if each.stay:
            each.gather()
    divided = [each for each in divided if not each.stay]
    if not divided:
        yield
        return
    modules = [learner.module, *getattr(learner, "frozen_modules", list)()]
    blocks = [block for module in modules for block in reversed(learner.blocks(module))]
    passes = _Passes(divided, modules, blocks)
    try:
        passes.begin()
        yield
        passes.finish()
    finally:
        passes.end()


@attrs.frozen
class _Weight:
    """A weight that is completed.

    Attributes:
        shards: what keeps its part.
        name: its name there.
        part: its part.
    """

    shards: Shards
    name: str
    part: Tensor

    def join(self) -> Tensor:
        """Return the whole weight; collective."""
        return self.shards.cut.join(self.part)

    def fill(self, whole: Tensor) -> None:
        """Complete the weight."""
        self.shards.fill(self.name, whole)

    def free(self) -> None:
        """Free the memory of the whole weight."""
        self.shards.free(self.name)


class _Passes:
    """The weights of one context, by block.

    Args:
        shards: the weights.
        modules: what runs.
        blocks: the blocks, in the order in which they run.
    """

    def __init__(self, shards: Sequence[Shards], modules: Sequence[nn.Module], blocks: Sequence[nn.Module]) -> None:
        self._shards = shards
        known = {
            id(parameter): _Weight(each, name, part)
            for each in shards
            for (name, parameter), part in zip(each.parameters.items(), each.parts, strict=True)
        }
        within = {id(part) for block in blocks for part in block.modules()}
        outside = {
            id(weight)
            for module in modules for part in module.modules() if id(part) not in within
            for weight in part.parameters(recurse=False)
        }  # fmt: skip
        nested = {id(block): _nested(block, blocks) for block in blocks}
        every = [
            [known[id(w)] for w in block.parameters() if id(w) in known and id(w) not in outside | nested[id(block)]]
            for block in blocks
        ]
        self._blocks = [(block, weights) for block, weights in zip(blocks, every, strict=True) if weights]
        owned = {id(each.part) for _, weights in self._blocks for each in weights}
        self._outside = [each for each in known.values() if id(each.part) not in owned]
        self._handles: list[Any] = []

    @torch.no_grad()
    def begin(self) -> None:
        """Complete the weights outside the blocks, and let each block complete its own when it runs; collective."""
        for each in self._shards:
            each.is_lent = True
        for weight in self._outside:
            weight.fill(weight.join())
        for index, (block, weights) in enumerate(self._blocks):

            def before(*_: object, index: int = index) -> None:
                while self._join(index) != index:
                    pass

            def after(*_: object, weights: Sequence[_Weight] = weights) -> None:
                for each in weights:
                    each.free()
                torch.clear_autocast_cache()  # where autocast keeps 16-bit copies of weights that train

            self._handles += [
                block.register_forward_pre_hook(before, prepend=True),
                block.register_forward_hook(after, always_call=True),
            ]

    def finish(self) -> None:
        """Join the blocks that other processes wait for, until all processes have finished; collective."""
        while self._join(FINISHED) != FINISHED:
            pass

    def end(self) -> None:
        """Free the weights."""
        for handle in self._handles:
            handle.remove()
        for each in self._shards:
            each.is_lent = False
            each.free(*each.parameters)

    @torch.no_grad()
    def _join(self, wanted: int) -> int:
        """Join the first block that a process waits for, and return its index; FINISHED if there is none."""
        first = self._first(wanted)
        if first < FINISHED:
            for each in self._blocks[first][1]:
                whole = each.join()
                if first == wanted:
                    each.fill(whole)
        return first

    def _first(self, wanted: int) -> int:
        """Return the smallest of the numbers of all processes; collective."""
        if not torch.distributed.is_initialized():
            return wanted
        number = torch.tensor(wanted, device=self._shards[0].cut.device)
        torch.distributed.all_reduce(number, torch.distributed.ReduceOp.MIN)
        return int(number)


def _nested(block: nn.Module, blocks: Sequence[nn.Module]) -> set[int]:
    """Return the weights, by id, of the blocks inside a block."""
    own = {id(each) for each in blocks} - {id(block)}
    return {id(weight) for part in block.modules() if id(part) in own for weight in part.parameters()}


CAST = (nn.Linear, nn.Conv1d, nn.Conv2d)
"""Layers whose weights autocast rounds to 16 bits wherever they are used."""
CAST_BY_NAME = "Conv1D"
"""Name of another one: the linear layer of GPT-2 in `transformers`."""


def shared_weights(blocks: Sequence[nn.Module]) -> set[nn.Parameter]:
    """Return the parameters that several blocks share, which stay whole, as beneath the adapter of a copied critic.

    Raises:
        ModelError: one of them trains.
    """
    uses = Counter(parameter for block in blocks for parameter in set(block.parameters()))
    nested = Counter(
        parameter for block in blocks for part in block.modules() if part is not block and part in blocks
        for parameter in set(part.parameters())
    )  # fmt: skip
    shared = {parameter for parameter, count in uses.items() if count - nested[parameter] > 1}
    if any(parameter.requires_grad for parameter in shared):
        raise ModelError(
            f"run.shard = 'fsdp': blocks ({type(blocks[0]).__name__}) share weights that train, which cannot be "
            "divided by block: set run.shard=none"
        )
    return shared


def norms_of(block: nn.Module) -> list[nn.Module] | None:
    """Return the layers of a block that autocast runs on weights of 32 bits, if they are norms; else None.

    Gathered in 16 bits, their weights would be rounded, which those of one process are not. Weights that other kinds of
    layers hold, such as the relative positions of a T5, may be read without calling the layer, so that they cannot be
    gathered when it is called.
    """
    owners = [part for part in block.modules() if next(part.parameters(recurse=False), None) is not None]
    kept = [part for part in owners if not isinstance(part, CAST) and type(part).__name__ != CAST_BY_NAME]
    return kept if all("norm" in type(part).__name__.lower() for part in kept) else None
