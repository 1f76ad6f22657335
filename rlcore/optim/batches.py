"""Cut a batch into the pieces that are learned from one after another."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import torch

from rlcore.profiling import phase, timed_each
from rlcore.ranks import Ranks
from rlcore.types import Trajectories, sent


@timed_each("batches")
def minibatches(batch: Trajectories, size: int, *, seed: int) -> Iterator[Trajectories]:
    """Yield the sequences of `batch` in random order, `size` at a time; the last group may be smaller.

    Args:
        batch: the whole round, the same on all ranks.
        size: sequences on all ranks together.
        seed: decides the order; the same on all ranks.
    """
    generator = torch.Generator().manual_seed(seed)
    for index in sent(torch.randperm(len(batch), generator=generator), batch.tokens.device).split(size):
        yield batch.rows(index)


@timed_each("batches")
def micro_batches(
    batch: Trajectories, size: int, ranks: Ranks, *, tokens: int = 0
) -> Iterator[tuple[Trajectories, bool]]:
    """Yield this rank's share of `batch` in parts, each as wide as it needs to be, and whether each is the last.

    A batch that is cut is sorted first, the longest sequences in front: those of a part are then of about one length,
    and the first part needs the most memory. A loss that is a sum over tokens is the same in any order; one that
    compares sequences with each other must have done so before, or cut by `Trajectories.split`, which sorts nothing.

    Every rank yields equally often, so that collective operations meet.

    Args:
        batch: the same on all ranks.
        size: sequences of a part at the most; 0 sets no bound.
        ranks: this process's place among the others.
        tokens: of a part at the most, counted as its sequences times the longest of them; 0 sets no bound. A sequence
            that is longer is a part of its own.
    """
    if not tokens and (not size or size * ranks.world >= len(batch)):
        yield ranks.take_share(batch), True
        return
    lengths = batch.mask.sum(1)
    order = lengths.argsort(descending=True, stable=True)
    share = ranks.take_share(batch.rows(order))
    # Sorted sequences are dealt in turn, so the first rank's are the longest: cut by these, all parts keep the bounds.
    longest: list[int] = lengths[order][:: ranks.world].tolist()
    if len(batch) % ranks.world:  # the longest sequence's prompt stands in at the end of other ranks' shares
        first = order[0]
        prompt = batch.mask[first] & (batch.action_mask[first].cumsum(0) == 0)
        longest[-1] = max(longest[-1], int(prompt.sum()))
    parts = torch.arange(len(share), device=share.tokens.device).split(_cut(longest, size, tokens))
    for i, index in enumerate(parts):
        yield share.rows(index), i == len(parts) - 1


def put_through(
    batch: Trajectories, change: Callable[[Trajectories], Trajectories], size: int, *, tokens: int = 0
) -> Trajectories:
    """Change a batch part by part, the parts being those of `micro_batches`, and return it in the order it had.

    Args:
        batch: sequences of this rank's own.
        change: returns a part's sequences with other columns, in their order.
        size: sequences of a part at the most; 0 sets no bound.
        tokens: of a part at the most, likewise.
    """
    if not tokens and (not size or size >= len(batch)):
        return change(batch)
    with phase("batches"):
        lengths = batch.mask.sum(1)
        order = lengths.argsort(descending=True, stable=True)
        parts = order.split(_cut(lengths[order].tolist(), size, tokens))
    changed = [change(part) for part in _picked(batch, parts)]
    with phase("batches"):
        return Trajectories.concat(changed).rows(order.argsort())


@timed_each("batches")
def _picked(batch: Trajectories, parts: Sequence[torch.Tensor]) -> Iterator[Trajectories]:
    return map(batch.rows, parts)


def _cut(lengths: Sequence[int], size: int, tokens: int) -> list[int]:
    """Say how many sequences, whose lengths are given in order, each part has."""
    sizes, widest = [0], 0
    for length in lengths:
        widest, count = max(widest, length), sizes[-1] + 1
        if count > 1 and ((size and count > size) or (tokens and count * widest > tokens)):
            sizes.append(0)
            widest, count = length, 1
        sizes[-1] = count
    return sizes
