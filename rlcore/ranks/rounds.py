"""A round: the responses that the processes of a run have sampled together, on which every sampling trainer works.

A process has the tokens of the rows that it sampled, and an array of one number a row of all of them: scores, lengths,
advantages. So all processes choose the same minibatches, and the tokens of a minibatch go to the process that learns
from them when it does. No process holds all tokens of a round, of which there may be more than fit.

Also in this file: minibatches and micro-batches, into which a batch is cut.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any, Self

import attrs
import torch
from torch import Tensor

from rlcore import ops
from rlcore.errors import MissingColumn
from rlcore.profiling import phase, timed_each
from rlcore.ranks import Ranks
from rlcore.ranks.exchange import alike, everywhere, exchange, gather, numbers_of, places_of
from rlcore.types import Metrics, Trajectories, grouped, tensor_on, to_device

ROW = "row"
"""Column of a round of several processes: the index of each row in the round. Stores keep it with the rows."""


@attrs.frozen(eq=False)
class _Facts:
    """What every process knows of the B rows of a round.

    Attributes:
        owners: long[B], the process that has each row; each has its rows in the order of the round.
        lengths: long[B], real tokens.
        prompt_lengths: long[B], real tokens before the first chosen one.
        num_actions: long[B], chosen tokens.
        ended: bool[B].
        columns: [B] by name.
    """

    owners: Tensor
    lengths: Tensor
    prompt_lengths: Tensor
    num_actions: Tensor
    ended: Tensor
    columns: Mapping[str, Tensor]

    def each(self, change: Callable[[Tensor], Tensor]) -> _Facts:
        """Apply `change` to every array."""
        return _Facts(
            change(self.owners), change(self.lengths), change(self.prompt_lengths), change(self.num_actions),
            change(self.ended), {name: change(array) for name, array in self.columns.items()},
        )  # fmt: skip


@attrs.frozen(eq=False)
class Round:
    """B responses, of which this process has K; on one process, K = B.

    `round["scores"]` is an array of one number for each of the B rows, the same on all processes. `round.own["values"]`
    belongs to the rows of this process, as do the tokens and masks of `round.own`. Methods are called by all processes
    together. `len(round)` is B.

    Attributes:
        own: the rows of this process, with all columns.
        ranks: the processes.
        metrics: those of the whole round, such as `reward/mean`.
        facts: what every process knows of the B rows; None on one process.
    """

    own: Trajectories
    ranks: Ranks
    metrics: Metrics = attrs.field(factory=dict)
    facts: _Facts | None = None

    @classmethod
    def of(cls, ranks: Ranks, own: Trajectories, metrics: Metrics | None = None) -> Self:
        """Return the round of which each process passes its rows.

        Rows are in the order of the column `row`; without it, the first rows of all processes come first.

        Raises:
            RanksError: the rows of two processes have different columns.
        """
        if ranks.world == 1:
            return cls(own, ranks, metrics or {})
        own = alike(ranks, own.to(ranks.device))
        if ROW not in own:
            own = own.with_columns(**{ROW: torch.arange(len(own), device=own.tokens.device) * ranks.world + ranks.rank})
        own = own.rows(own[ROW].argsort(stable=True))
        counts = [int(count) for count in gather(ranks, tensor_on(ranks.device, [len(own)]))]
        owners = torch.arange(ranks.world, device=ranks.device).repeat_interleave(tensor_on(ranks.device, counts))
        numbers = numbers_of(own)
        arrays = [own.lengths, own.prompt_lengths, own.num_actions, own.ended, *numbers.values()]
        lengths, prompt_lengths, num_actions, ended, *columns = everywhere(ranks, arrays, counts)
        named = dict(zip(numbers, columns, strict=True))
        found = _Facts(owners, lengths, prompt_lengths, num_actions, ended, named)
        order = found.columns[ROW].argsort(stable=True)
        return cls(own, ranks, metrics or {}, found.each(lambda array: array[order]))

    @classmethod
    def dealt(cls, ranks: Ranks, whole: Trajectories, *, group: int = 1) -> Self:
        """Return a round of rows that every process holds; groups of consecutive rows are dealt to them in turn."""
        if ranks.world == 1:
            return cls(whole, ranks)
        rows = torch.arange(len(whole), device=whole.tokens.device)
        owners = rows // group % ranks.world
        whole = whole.with_columns(**{ROW: rows})
        facts = _Facts(
            owners, whole.lengths, whole.prompt_lengths, whole.num_actions, whole.ended, numbers_of(whole)
        )  # fmt: skip
        return cls(whole.rows(owners == ranks.rank), ranks, {}, facts)

    @classmethod
    def join(cls, rounds: Sequence[Self]) -> Self:
        """Return the rows of several rounds with the same columns, one round after another."""
        if len(rounds) == 1:
            return rounds[0]
        first = rounds[0]
        own = Trajectories.concat([each.own for each in rounds])
        known = [each.facts for each in rounds if each.facts is not None]
        if not known:
            return attrs.evolve(first, own=own)

        def joined(pick: Callable[[_Facts], Tensor]) -> Tensor:
            return torch.cat([pick(each) for each in known])

        facts = _Facts(
            joined(attrgetter("owners")), joined(attrgetter("lengths")), joined(attrgetter("prompt_lengths")),
            joined(attrgetter("num_actions")), joined(attrgetter("ended")),
            {name: torch.cat([each.columns[name] for each in known]) for name in known[0].columns},
        )  # fmt: skip
        return attrs.evolve(first, **_numbered(own, facts, first.ranks.rank))

    def __len__(self) -> int:
        return len(self.own) if self.facts is None else len(self.facts.owners)

    def __contains__(self, name: str) -> bool:
        return name in self.own.columns

    def __getitem__(self, name: str) -> Tensor:
        """Return the column called `name`, one number for each row: [B].

        Raises:
            MissingColumn: there is none.
        """
        if self.facts is None:
            return self.own[name]
        try:
            return self.facts.columns[name]
        except KeyError:
            raise MissingColumn(name, tuple(self.facts.columns)) from None

    @property
    def lengths(self) -> Tensor:
        """The number of real tokens of each row: long[B]."""
        return self.own.lengths if self.facts is None else self.facts.lengths

    @property
    def prompt_lengths(self) -> Tensor:
        """The number of real tokens before the first chosen one of each row: long[B]."""
        return self.own.prompt_lengths if self.facts is None else self.facts.prompt_lengths

    @property
    def num_actions(self) -> Tensor:
        """The number of chosen tokens of each row: long[B]."""
        return self.own.num_actions if self.facts is None else self.facts.num_actions

    @property
    def ended(self) -> Tensor:
        """Whether each row ended: bool[B]."""
        return self.own.ended if self.facts is None else self.facts.ended

    def all(self, values: Tensor) -> Tensor:
        """Return on every process the numbers of all rows, [B, ...], given those of its own, [K, ...]."""
        if self.facts is None:
            return values
        owners = self.facts.owners
        counts = owners.bincount(minlength=self.ranks.world)
        (found,) = everywhere(self.ranks, [values], counts.tolist())
        return found[(counts.cumsum(0) - counts)[owners] + places_of(owners)]

    def mine(self, values: Tensor) -> Tensor:
        """Return the numbers of the rows of this process, [K, ...], given those of all rows, [B, ...]."""
        return values if self.facts is None else values[self.facts.owners.to(values.device) == self.ranks.rank]

    def sums(self, values: Tensor) -> Tensor:
        """Return the sum over the chosen tokens of each row: [K, T] of `own` -> float64[B]."""
        return self.all(values.double().masked_fill(~self.own.action_mask, 0.0).sum(1))

    def mean(self, values: Tensor) -> float:
        """Return the mean over all chosen tokens of the round of numbers of the own ones, [K, T]."""
        if self.facts is None:
            return float(values[self.own.action_mask].double().mean())
        return float(self.sums(values).sum() / self.num_actions.sum())

    def whiten(self, values: Tensor, *, min_std: float) -> Tensor:
        """Whiten numbers of the own tokens over all chosen tokens of the round (`ops.whiten`): float[K, T]."""
        if self.facts is None:
            return ops.whiten(values, self.own.action_mask, min_std=min_std)
        mean = self.mean(values)
        std = self.mean((values.double() - mean) ** 2) ** 0.5
        whitened: Tensor = (values - mean) / max(std, min_std)
        return whitened.masked_fill(~self.own.action_mask, 0.0)

    def chosen(self, values: Tensor) -> Tensor:
        """Return the numbers of all chosen tokens of the round, given those of the own ones, [K, T]: [N]."""
        flat = values[self.own.action_mask]
        if self.facts is None:
            return flat
        counts = gather(self.ranks, tensor_on(self.ranks.device, [len(flat)]))
        return everywhere(self.ranks, [flat], [int(count) for count in counts])[0]

    def map(self, change: Callable[[Trajectories], Trajectories], *, size: int = 0, tokens: int = 0) -> Self:
        """Return the round after each process has put its rows through a function, part by part.

        Args:
            change: returns the rows of a part with more columns, in the same order. What it computes of a row, one
                number or one for each token, depends on that row alone.
            size: rows of a part at the most; 0 sets no bound.
            tokens: tokens of a part at the most, padding included; 0 sets no bound.
        """
        own = _put_through(self.own, change, size, tokens) if len(self.own) else self.own
        if self.facts is None:
            return attrs.evolve(self, own=own)
        if len(self.facts.owners.unique()) < self.ranks.world:
            own = alike(self.ranks, own)
        numbers = numbers_of(own)
        new = [name for name in numbers if name not in self.facts.columns]
        changed = attrs.evolve(self, own=own)
        found = {name: changed.all(numbers[name]) for name in new}
        columns = {name: self.facts.columns[name] for name in numbers if name not in new}
        return attrs.evolve(changed, facts=attrs.evolve(self.facts, columns=columns | found))

    def with_columns(self, **columns: Tensor) -> Self:
        """Return the same rows with columns added or replaced.

        Args:
            columns: one number for each row of the round, [B], or more for each row of this process, [K, ...].
        """
        if self.facts is None:
            return attrs.evolve(self, own=self.own.with_columns(**columns))
        numbers = {name: array for name, array in columns.items() if array.dim() == 1}
        own = self.own.with_columns(**columns | {name: self.mine(array) for name, array in numbers.items()})
        facts = attrs.evolve(self.facts, columns={**self.facts.columns, **numbers})
        return attrs.evolve(self, own=own, facts=facts)

    def with_only(self, *names: str) -> Self:
        """Return the same rows with these columns and no others."""
        if self.facts is None:
            return attrs.evolve(self, own=self.own.with_only(*names))
        columns = {name: array for name, array in self.facts.columns.items() if name in (*names, ROW)}
        facts = attrs.evolve(self.facts, columns=columns)
        return attrs.evolve(self, own=self.own.with_only(*names, ROW), facts=facts)

    def rename(self, **names: str) -> Self:
        """Return the same rows with columns renamed, as in `rename(old_name="new_name")`."""
        own = self.own.rename(**names)
        if self.facts is None:
            return attrs.evolve(self, own=own)
        columns = {names.get(name, name): array for name, array in self.facts.columns.items()}
        return attrs.evolve(self, own=own, facts=attrs.evolve(self.facts, columns=columns))

    def rows(self, index: Tensor) -> Self:
        """Return the rows at `index`, long[K] or bool[B]; all processes pass the same."""
        if self.facts is None:
            return attrs.evolve(self, own=self.own.rows(index))
        facts = self.facts.each(lambda array: array[index])
        places = places_of(self.facts.owners)[index]
        own = self.own.rows(places[facts.owners == self.ranks.rank])
        return attrs.evolve(self, **_numbered(own, facts, self.ranks.rank))

    def learning(self, learns: Tensor) -> Self:
        """Return the same rows, of which only those at `learns`, bool[B], have chosen tokens."""
        chosen = self.own.action_mask & self.mine(learns)[:, None]
        own = attrs.evolve(self.own, action_mask=chosen)
        if self.facts is None:
            return attrs.evolve(self, own=own)
        facts = attrs.evolve(
            self.facts, num_actions=self.num_actions * learns,
            prompt_lengths=self.prompt_lengths.where(learns, self.lengths),
        )  # fmt: skip
        return attrs.evolve(self, own=own, facts=facts)

    def fetch(self, wanted: Sequence[Tensor]) -> Trajectories:
        """Return the rows that this process wants, with their tokens and all columns.

        Args:
            wanted: the rows that each process wants, long[...]; all processes pass the same.
        """
        rows = wanted[self.ranks.rank]
        if self.facts is None:
            return self.own.rows(rows)
        facts = self.facts
        found = exchange(self.ranks, self.own, wanted, facts.owners, facts.lengths)
        columns = {name: array[rows] for name, array in facts.columns.items() if name != ROW}
        return attrs.evolve(found, ended=facts.ended[rows], columns={**found.columns, **columns})

    def whole(self) -> Trajectories:
        """Return all rows on every process, for a checkpoint that runs of other numbers of processes may resume."""
        if self.facts is None:
            return self.own
        device = self.ranks.device
        return self.to(device).fetch([torch.arange(len(self), device=device)] * self.ranks.world)

    def to(self, device: torch.device | str) -> Self:
        """Move every array to `device`; rows are exchanged on the device of the process."""
        facts = None if self.facts is None else self.facts.each(lambda array: to_device(array, device))
        return attrs.evolve(self, own=self.own.to(device), facts=facts)

    def micro_batches(self, size: int, *, tokens: int = 0, group: int = 1) -> Iterator[tuple[Trajectories, bool]]:
        """Yield the rows that this process learns from in parts, and whether each is the last (`micro_batches`)."""
        return micro_batches(self, size, self.ranks, tokens=tokens, group=group)

    @timed_each("batches")
    def minibatches(self, size: int, *, seed: int, group: int = 1) -> Iterator[Round]:
        """Yield the rows in random order, `size` at a time; the last minibatch may be smaller.

        Args:
            size: rows on all processes together, a multiple of `group`.
            seed: decides the order.
            group: so many consecutive rows stay together, in their order.

        Raises:
            ValueError: the round or `size` is not a multiple of `group`.
        """
        count = _count_groups(len(self), group)
        if size % group:
            raise ValueError(f"minibatches of {size} rows: must be a multiple of {group}, the size of a group")
        order = torch.randperm(count, generator=torch.Generator().manual_seed(seed))
        for index in to_device(order, self.own.tokens.device).split(size // group):
            yield self.rows(grouped(index, group))


def _numbered(own: Trajectories, facts: _Facts, rank: int) -> dict[str, Any]:
    """Return rows and what is known of them with the column `row` of their present order."""
    number = torch.arange(len(facts.owners), device=facts.owners.device)
    own = own.with_columns(**{ROW: number[facts.owners == rank]})
    return {"own": own, "facts": attrs.evolve(facts, columns={**facts.columns, ROW: number})}


@timed_each("batches")
def micro_batches(
    batch: Trajectories | Round, size: int, ranks: Ranks, *, tokens: int = 0, group: int = 1
) -> Iterator[tuple[Trajectories, bool]]:
    """Yield this rank's share of `batch` in parts, each as wide as it needs to be, and whether each is the last.

    A batch that is cut is sorted by length first, descending: sequences of a part are then of about one length, and the
    first part needs the most memory. A loss that is a sum over tokens is the same in any order. One that compares
    sequences with each other, as a preference loss compares pairs, names the size of its groups.

    Every rank yields equally often, so that collective operations meet.

    Args:
        batch: a round, or sequences that every process holds.
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
        yield share_of(batch, ranks, group=group), True
        return
    lengths = batch.lengths.view(count, group).amax(1)
    order = lengths.argsort(descending=True, stable=True)
    share = share_of(batch, ranks, group=group, order=order)
    # Sorted groups are dealt in turn, so the first rank's are the longest: cut by these, all parts keep the bounds.
    longest: list[int] = lengths[order][:: ranks.world].tolist()
    if count % ranks.world:  # the prompts of the longest group stand in at the end of other ranks' shares
        longest[-1] = max(longest[-1], int(batch.prompt_lengths[grouped(order[:1], group)].max()))
    parts = torch.arange(len(longest), device=share.tokens.device).split(_cut(longest, size, tokens, group))
    for i, index in enumerate(parts):
        yield share.rows(grouped(index, group)), i == len(parts) - 1


def share_of(batch: Trajectories | Round, ranks: Ranks, *, group: int = 1, order: Tensor | None = None) -> Trajectories:
    """Return this process's rows of a batch; all processes receive equally many rows.

    Groups of `group` consecutive rows are distributed round-robin, in the given `order` of groups. If they do not
    divide evenly, some processes receive the prompts of the first group as filler rows, without chosen tokens, so that
    they add nothing to sums.
    """
    if ranks.world == 1:
        rows = batch.own if isinstance(batch, Round) else batch
        return rows if order is None else rows.rows(grouped(order, group))
    count = len(batch) // group
    dealt = torch.arange(count, device=batch.lengths.device) if order is None else order
    size = -(-count // ranks.world)
    fillers = dealt[:1]
    shares = [grouped(torch.cat([dealt[rank :: ranks.world], fillers])[:size], group) for rank in range(ranks.world)]
    mine = batch.fetch(shares) if isinstance(batch, Round) else batch.rows(shares[ranks.rank])
    real = len(dealt[ranks.rank :: ranks.world]) * group
    if real < size * group:
        mine.mask[real:] &= mine.action_mask[real:].cumsum(1) == 0
        mine.action_mask[real:] = False
    return mine


def _put_through(
    rows: Trajectories, change: Callable[[Trajectories], Trajectories], size: int, tokens: int
) -> Trajectories:
    """Apply a function to rows part by part, as `micro_batches` cuts them; return the results in the original order."""
    if not tokens and (not size or size >= len(rows)):
        return change(rows)
    with phase("batches"):
        lengths = rows.lengths
        order = lengths.argsort(descending=True, stable=True)
        parts = order.split(_cut(lengths[order].tolist(), size, tokens))
    changed = []
    for index in parts:
        with phase("batches"):
            part = rows.rows(index)
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
