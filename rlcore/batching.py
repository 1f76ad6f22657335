"""Cut a batch into the pieces that are learned from one after another."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from rlcore.ranks import Ranks
from rlcore.types import Trajectories


def minibatches(batch: Trajectories, size: int, *, seed: int) -> Iterator[Trajectories]:
    """Yield the sequences of `batch` in random order, `size` at a time; the last group may be smaller.

    Args:
        batch: the whole round, the same on all ranks.
        size: sequences on all ranks together.
        seed: decides the order; the same on all ranks.
    """
    generator = torch.Generator().manual_seed(seed)
    for index in torch.randperm(len(batch), generator=generator).to(batch.tokens.device).split(size):
        yield batch.rows(index)


def micro_batches(batch: Trajectories, size: int, ranks: Ranks) -> Iterator[tuple[Trajectories, bool]]:
    """Yield this rank's share of `batch`, `size` sequences at a time (0: all), and whether each part is the last.

    Every rank yields equally often, so that collective operations meet.
    """
    share = ranks.take_share(batch)
    parts = list(share.split(size)) if size else [share]
    for i, part in enumerate(parts):
        yield part, i == len(parts) - 1
