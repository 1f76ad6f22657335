"""Minibatches and micro-batches, into which a batch is cut, and averages of metrics over them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence

import torch
from torch import Tensor

from rlcore.data.order import OrderedRows
from rlcore.dropout import eval_mode
from rlcore.profiling import phase, timed, timed_each
from rlcore.protocols import Policy
from rlcore.ranks import Ranks
from rlcore.sharding.divided import by_block
from rlcore.types import Metrics, Sample, Trajectories, grouped, stack_samples, to_device


@timed_each("batches")
def minibatches(batch: Trajectories, size: int, *, seed: int, group: int = 1) -> Iterator[Trajectories]:
    """Yield the sequences of `batch` in random order, `size` at a time; the last minibatch may be smaller.

    Args:
        batch: the whole round, the same on all ranks.
        size: sequences on all ranks together, a multiple of `group`.
        seed: decides the order; the same on all ranks.
        group: so many consecutive sequences stay together, in their order.

    Raises:
        ValueError: the batch or `size` is not a multiple of `group`.
    """
    count = _count_groups(len(batch), group)
    if size % group:
        raise ValueError(f"minibatches of {size} sequences: must be a multiple of {group}, the size of a group")
    generator = torch.Generator().manual_seed(seed)
    for index in to_device(torch.randperm(count, generator=generator), batch.tokens.device).split(size // group):
        yield batch.rows(grouped(index, group))


@timed_each("batches")
def micro_batches(
    batch: Trajectories, size: int, ranks: Ranks, *, tokens: int = 0, group: int = 1
) -> Iterator[tuple[Trajectories, bool]]:
    """Yield this rank's share of `batch` in parts, each as wide as it needs to be, and whether each is the last.

    A batch that is cut is sorted by length first, descending: sequences of a part are then of about one length, and the
    first part needs the most memory. A loss that is a sum over tokens is the same in any order. One that compares
    sequences with each other, as a preference loss compares pairs, names the size of its groups.

    Every rank yields equally often, so that collective operations meet.

    Args:
        batch: the same on all ranks.
        size: sequences of a part at the most; 0 sets no bound.
        ranks: this process's place among the others.
        tokens: tokens of a part at the most, counted as its sequences times the longest of them; 0 sets no bound.
        group: so many consecutive sequences stay together, in their order, and are sorted by the longest of them. A
            group that exceeds a bound is a part of its own.

    Raises:
        ValueError: the batch is not a multiple of `group`.
    """
    count = _count_groups(len(batch), group)
    if not tokens and (not size or size >= -(-count // ranks.world) * group):
        yield ranks.take_share(batch, group=group), True
        return
    lengths = batch.lengths.view(count, group).amax(1)
    order = lengths.argsort(descending=True, stable=True)
    share = ranks.take_share(batch.rows(grouped(order, group)), group=group)
    # Sorted groups are dealt in turn, so the first rank's are the longest: cut by these, all parts keep the bounds.
    longest: list[int] = lengths[order][:: ranks.world].tolist()
    if count % ranks.world:  # the prompts of the longest group stand in at the end of other ranks' shares
        longest[-1] = max(longest[-1], int(batch.prompt_lengths[grouped(order[:1], group)].max()))
    parts = torch.arange(len(longest), device=share.tokens.device).split(_cut(longest, size, tokens, group))
    for i, index in enumerate(parts):
        yield share.rows(grouped(index, group)), i == len(parts) - 1


def put_through(
    batch: Trajectories, change: Callable[[Trajectories], Trajectories], size: int, *, tokens: int = 0
) -> Trajectories:
    """Apply a function to a batch part by part, as `micro_batches` cuts it; return the results in the original order.

    Args:
        batch: this rank's own sequences.
        change: returns the sequences of a part with other columns, in the same order.
        size: sequences of a part at the most; 0 sets no bound.
        tokens: tokens of a part at the most, padding included; 0 sets no bound.
    """
    if not tokens and (not size or size >= len(batch)):
        return change(batch)
    with phase("batches"):
        lengths = batch.lengths
        order = lengths.argsort(descending=True, stable=True)
        parts = order.split(_cut(lengths[order].tolist(), size, tokens))
    changed = []
    for index in parts:
        with phase("batches"):
            part = batch.rows(index)
        changed.append(change(part))
    with phase("batches"):
        return Trajectories.concat(changed).rows(order.argsort())


def _cut(lengths: Sequence[int], size: int, tokens: int, group: int = 1) -> list[int]:
    """Return the number of groups in each part, given the longest sequence of each group, descending."""
    sizes, widest = [0], 0
    for length in lengths:
        widest, count = max(widest, length), (sizes[-1] + 1) * group
        if sizes[-1] and ((size and count > size) or (tokens and count * widest > tokens)):
            sizes.append(0)
            widest = length
        sizes[-1] += 1
    return sizes


def _count_groups(count: int, group: int) -> int:
    if count % group:
        raise ValueError(f"a batch of {count} sequences: must be a multiple of {group}, the size of a group")
    return count // group


class Meter:
    """Sum metrics on the device; nothing is copied to the host before `means` is called."""

    def __init__(self, ranks: Ranks) -> None:
        self._ranks, self._names = ranks, ["count"]
        self._sums: Tensor | None = None
        self._noted: dict[str, list[Tensor]] = {}

    @property
    def is_empty(self) -> bool:
        """Return whether nothing has been added."""
        return self._sums is None

    @timed("metrics")
    def add(self, chosen: Tensor, values: Mapping[str, Tensor]) -> None:
        """Add one number per token, sequence or group, where `chosen` (bool, of the same shape) is True."""
        self._names = ["count", *values]
        measured = torch.stack([chosen.float(), *values.values()])
        self._accumulate(measured.masked_fill(~chosen, 0.0).flatten(1).sum(1, dtype=torch.float64))

    def note(self, name: str, value: Tensor) -> None:
        """Add one number of an optimizer step, equal on all ranks; `means` weighs every step alike."""
        self._noted.setdefault(name, []).append(value)

    def merge(self, other: Meter) -> None:
        """Add everything that another meter has summed."""
        for name, values in other._noted.items():
            self._noted.setdefault(name, []).extend(values)
        if other._sums is not None:
            self._names = other._names
            self._accumulate(other._sums)

    def _accumulate(self, sums: Tensor) -> None:
        self._sums = sums if self._sums is None else self._sums + sums

    @timed("metrics")
    def means(self) -> dict[str, float]:
        """Return the average of each metric over all entries on all ranks, and of each noted number over steps."""
        noted = {name: sum(map(float, values)) / len(values) for name, values in self._noted.items()}
        if self._sums is None:
            return noted
        count, *sums = self._ranks.sum(self._sums).tolist()
        means = {name: value / max(count, 1.0) for name, value in zip(self._names[1:], sums, strict=True)}
        return means | noted


@torch.no_grad()
def validate(
    policy: Policy,
    samples: Sequence[Sample],
    measure: Callable[[Trajectories], Mapping[str, Tensor]],
    ranks: Ranks,
    *,
    batch_size: int,
    size: int = 0,
    tokens: int = 0,
) -> Metrics:
    """Return the mean of each metric over the chosen tokens of held-out samples, measured as training measures batches.

    The policy is in evaluation mode.

    Args:
        policy: what `measure` calls.
        samples: the same on all ranks; with `/` and its name, metrics of each source of a mixture are returned too.
        measure: returns the metrics of a micro-batch, each float[B, T].
        ranks: each measures its share.
        batch_size: samples that are padded together, on all ranks.
        size: samples of one forward pass on a rank at the most; 0 sets no bound.
        tokens: tokens of one forward pass at the most, padding included; 0 sets no bound.
    """
    whole, metrics = Meter(ranks), Metrics()
    for source, rows in (samples.parts() if isinstance(samples, OrderedRows) else {"": samples}).items():
        meter = Meter(ranks)
        with eval_mode(policy.module), by_block(policy):
            for start in range(0, len(rows), batch_size):
                batch = stack_samples(rows[start : start + batch_size]).to(ranks.device)
                for part, _ in micro_batches(batch, size, ranks, tokens=tokens):
                    meter.add(part.action_mask, measure(part))
        whole.merge(meter)
        metrics |= {f"{name}/{source}": mean for name, mean in (meter.means() if source else {}).items()}
    return whole.means() | metrics
