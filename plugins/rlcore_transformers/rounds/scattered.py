"""A round whose tokens stay with the processes that sampled them, while statistics of its rows go to all.

`rlcore.training.gather_round` brings the whole round to every process. Where many processes sample long responses, that
is more than a device can hold, although a process learns from its share of each minibatch only. Here every process
receives the arrays of one number a sequence (scores, lengths, advantages), from which all of them choose the same
minibatches; the tokens of a minibatch, and the arrays of one number a token, go to the process that learns from them
when it does.

Also in this file: the exchange of rows between processes: each receives the rows that it asks for, and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import attrs
import torch
from torch import Tensor

from rlcore.ranks import Ranks
from rlcore.training import MemoryStore, Run, Scored, gather_round
from rlcore.types import Metrics, Trajectories


def on_the_right(batch: Trajectories) -> Trajectories:
    """Return the same sequences with all padding on the right, and only their columns per token."""
    width = batch.tokens.shape[1]
    order = batch.mask.int().argsort(dim=1, descending=True, stable=True)
    columns = {name: array for name, array in batch.columns.items() if array.shape[1:] == (width,)}
    moved = Trajectories(
        batch.tokens.gather(1, order), batch.mask.gather(1, order), batch.action_mask.gather(1, order), batch.ended,
        {name: array.gather(1, order) for name, array in columns.items()},
    )  # fmt: skip
    return moved.trim()


def exchange(
    ranks: Ranks, own: Trajectories, wanted: Sequence[Tensor], *, owners: Tensor, places: Tensor, lengths: Tensor
) -> Trajectories:
    """Return the rows that this process wants, from the processes that have them; collective.

    Args:
        ranks: the processes.
        own: the rows that this process has, padded on the right; the columns have one number a token.
        wanted: long[K] for each process, the numbers of the rows that it wants, the same on all processes.
        owners: long[N], the process that has each row.
        places: long[N], its index among the rows there.
        lengths: long[N], its number of real tokens.

    Returns:
        The rows, in the order in which they are wanted; `ended` is True for all of them.
    """
    packed = [_pack(own.rows(places[rows[owners[rows] == ranks.rank]])) for rows in wanted]
    mine = wanted[ranks.rank]
    asked = [(owners[mine] == rank).nonzero()[:, 0] for rank in range(ranks.world)]
    unit = 5 + sum(array.itemsize for array in own.columns.values())
    sizes = [unit * int(lengths[mine[rows]].sum()) for rows in asked]
    received = torch.empty(sum(sizes), dtype=torch.uint8, device=own.tokens.device)
    with ranks.collective("exchange of rows"):
        torch.distributed.all_to_all_single(received, torch.cat(packed), sizes, [len(part) for part in packed])
    parts = [
        _unpack(part, own, lengths[mine[rows]])
        for part, rows in zip(received.split(sizes), asked, strict=True)
        if len(rows)
    ]
    return Trajectories.concat(parts).rows(torch.cat(asked).argsort())


def _pack(rows: Trajectories) -> Tensor:
    """Return the real tokens of rows, and their columns: uint8[...]."""
    columns = [rows[name] for name in sorted(rows.columns)]
    real = rows.mask.flatten().nonzero()[:, 0]  # found once, while indexing by the mask finds it for every array
    arrays = [array.flatten()[real] for array in (rows.tokens, rows.action_mask, *columns)]
    return torch.cat([array.view(torch.uint8) for array in (arrays[0].int(), *arrays[1:])])


def _unpack(packed: Tensor, like: Trajectories, lengths: Tensor) -> Trajectories:
    """Return rows of these lengths from their bytes, padded on the right with zeros."""
    mask = torch.arange(int(lengths.max()), device=packed.device) < lengths[:, None]
    real, at = int(lengths.sum()), 0

    def read(dtype: torch.dtype) -> Tensor:
        nonlocal at
        start, at = at, at + real * dtype.itemsize
        values = packed[start:at].clone().view(dtype)  # a copy, because views need aligned memory
        return torch.zeros(mask.shape, dtype=dtype, device=packed.device).masked_scatter_(mask, values)

    tokens, chosen = read(torch.int32).long(), read(torch.bool)
    columns = {name: read(like[name].dtype) for name in sorted(like.columns)}
    return Trajectories(tokens, mask, chosen, torch.ones_like(lengths, dtype=torch.bool), columns)


@attrs.frozen(eq=False, kw_only=True)
class _Rows:
    """Where the rows of a round are.

    Attributes:
        ranks: the processes.
        own: the rows of this process, padded on the right, with their columns per token.
        owners: long[N], the process that has each row of the round; each process has its rows in their order.
        lengths: long[N], its number of real tokens.
        prompt_lengths: long[N], its number of real tokens before the first chosen one.
        num_actions: long[N], its number of chosen tokens.
        places: long[N], its index among the rows of its process.
    """

    ranks: Ranks
    own: Trajectories
    owners: Tensor
    lengths: Tensor
    prompt_lengths: Tensor
    num_actions: Tensor
    places: Tensor = attrs.field(init=False, default=attrs.Factory(lambda self: _places(self.owners), takes_self=True))

    def fetch(self, wanted: Sequence[Tensor]) -> Trajectories:
        """Return the rows whose numbers each process wants, those of this one; collective."""
        places, lengths = self.places, self.lengths
        return exchange(self.ranks, self.own, wanted, owners=self.owners, places=places, lengths=lengths)


@attrs.frozen(eq=False)
class ScatteredRound(Trajectories):
    """Sequences whose tokens are with several processes.

    `tokens`, `mask` and `action_mask` have no positions, [B, 0]; `ended` and the columns have one number a sequence,
    and are the same on all processes. `Ranks.take_share`, and so `Updater.accumulate`, fetches the tokens of the
    sequences that a process learns from.

    Attributes:
        held: where the rows of the round are.
        index: long[B], the number of each sequence in the round.
        learns: bool[B]; the chosen tokens of other sequences count as if they were none.
    """

    held: _Rows = attrs.field(kw_only=True)
    index: Tensor = attrs.field(kw_only=True)
    learns: Tensor = attrs.field(kw_only=True)

    @property
    def lengths(self) -> Tensor:
        """The number of real tokens of each sequence: long[B]."""
        return self.held.lengths[self.index]

    @property
    def num_actions(self) -> Tensor:
        """The number of chosen tokens of each sequence: long[B]."""
        return self.held.num_actions[self.index] * self.learns

    @property
    def prompt_lengths(self) -> Tensor:
        """The number of real tokens before the first chosen token of each sequence: long[B]."""
        return self.held.prompt_lengths[self.index].where(self.learns, self.lengths)

    def own(self) -> Trajectories:
        """Return the sequences whose tokens this process has, in their order, with all columns."""
        rows = self._own_rows()
        return self._completed(self.held.own.rows(self.held.places[self.index[rows]]), rows)

    def with_own(self, **columns: Tensor) -> ScatteredRound:
        """Return the same sequences with columns per token added or replaced.

        Args:
            columns: float[K, T] of the sequences of `own`, by name.
        """
        own = self.own()
        own = attrs.evolve(own, columns={name: own[name] for name in self.held.own.columns} | columns)
        return _scattered(self, [self], own)

    def with_only(self, *names: str) -> ScatteredRound:
        """Return the same sequences with these columns, per sequence or per token, and no others."""
        own = self.held.own
        columns = {name: self[name] for name in names if name not in own}
        own = own.with_only(*(name for name in names if name in own))
        return attrs.evolve(self, columns=columns, held=attrs.evolve(self.held, own=own))

    def rename(self, **names: str) -> ScatteredRound:
        """Return the same sequences with columns renamed, per sequence or per token."""
        columns = {names.get(name, name): array for name, array in self.columns.items()}
        return attrs.evolve(self, columns=columns, held=attrs.evolve(self.held, own=self.held.own.rename(**names)))

    def everywhere(self, values: Tensor) -> Tensor:
        """Return on every process the numbers of all sequences; collective.

        Args:
            values: [K, ...], of the sequences of `own`.

        Returns:
            [B, ...], in the order of the sequences.
        """
        ranks, owners = self.held.ranks, self.held.owners[self.index]
        room = int(owners.bincount(minlength=ranks.world).max())
        padded = torch.cat([values, values.new_zeros(room - len(values), *values.shape[1:])])
        received = [torch.empty_like(padded) for _ in range(ranks.world)]
        with ranks.collective("statistics of rows"):
            torch.distributed.all_gather(received, padded)
        return torch.cat(received)[owners * room + _places(owners)]

    def each(self, change: Callable[[Tensor], Tensor]) -> ScatteredRound:
        """Apply `change` to the arrays that every process has."""
        plain = Trajectories.each(self, change)
        return attrs.evolve(
            self, tokens=plain.tokens, mask=plain.mask, action_mask=plain.action_mask, ended=plain.ended,
            columns=plain.columns, index=change(self.index), learns=change(self.learns),
        )  # fmt: skip

    def dealt(self, rows_of: Callable[[int], Tensor], rank: int) -> Trajectories:
        """Return the sequences that are dealt to a process, with their tokens; collective."""
        wanted = [self.index[rows_of(each)] for each in range(self.held.ranks.world)]
        return self._completed(self.held.fetch(wanted), rows_of(rank))

    def _own_rows(self) -> Tensor:
        rows: Tensor = (self.held.owners[self.index] == self.held.ranks.rank).nonzero()[:, 0]
        return rows

    def _completed(self, own: Trajectories, rows: Tensor) -> Trajectories:
        """Return the sequences at `rows`, of which `own` has the tokens and the columns per token."""
        columns = {name: array[rows] for name, array in self.columns.items()}
        chosen = own.action_mask & self.learns[rows][:, None]
        return attrs.evolve(own, action_mask=chosen, ended=self.ended[rows], columns={**own.columns, **columns})


def can_scatter(run: Run, store: object, *, passes: int) -> bool:
    """Return whether rounds may be scattered, and if so, bring a process no more bytes than whole rounds.

    Args:
        run: the run.
        store: its rollout store; one that writes rows elsewhere receives whole rounds.
        passes: how often each row of a round is learned from.
    """
    return 1 < run.ranks.world >= passes and type(store) is MemoryStore


def gather_statistics(
    run: Run, batch: Trajectories, scored: Scored, *, at_least: int = 1, group: int = 1
) -> tuple[ScatteredRound, Metrics]:
    """Return the responses of a round that have a score, and the metrics of the whole round; collective.

    This is `rlcore.training.gather_round`, with the same arguments and errors, but only the columns of one number a
    sequence go to all processes.
    """
    ranks, width, device = run.ranks, batch.tokens.shape[1], batch.tokens.device
    where = {
        "owner": torch.full((len(batch),), ranks.rank, device=device), "place": torch.arange(len(batch), device=device),
        "length": batch.lengths, "prompt": batch.prompt_lengths, "actions": batch.num_actions,
    }  # fmt: skip
    per_token = {name for name, array in batch.columns.items() if array.shape[1:] == (width,)}
    # Of columns per token no number is sent, but all processes must have the same, which is checked as in whole rounds.
    numbers = {name: array[:, :0] if name in per_token else array for name, array in batch.columns.items()}
    nothing = batch.tokens.new_zeros(len(batch), 0)
    own = Trajectories(nothing, nothing.bool(), nothing.bool(), batch.ended, numbers).with_columns(
        **{f"{_PREFIX}{name}": array for name, array in where.items()}
    )
    whole, metrics = gather_round(run, own, scored, at_least=at_least, group=group)
    mean = run.ranks.sum(torch.tensor([float(batch.num_actions.sum()), float(len(batch))])).tolist()
    metrics["response/length_mean"] = mean[0] / mean[1]
    owners, places, lengths, prompts, actions = (whole[f"{_PREFIX}{name}"] for name in where)
    rows = places[(owners == ranks.rank).nonzero()[:, 0]]
    held = _Rows(
        ranks=ranks, own=on_the_right(batch.to(ranks.device)).rows(rows), owners=owners, lengths=lengths,
        prompt_lengths=prompts, num_actions=actions,
    )  # fmt: skip
    columns = {
        name: array for name, array in whole.columns.items() if not (name.startswith(_PREFIX) or name in per_token)
    }
    everything = {"index": torch.arange(len(whole), device=ranks.device), "learns": torch.ones_like(whole.ended)}
    found = ScatteredRound(whole.tokens, whole.mask, whole.action_mask, whole.ended, columns, held=held, **everything)
    return found, metrics


_PREFIX = "scattered/"
"""Begins the names of columns that say where the tokens of rows are, while these are gathered."""


def join_rounds(parts: Sequence[Trajectories]) -> Trajectories:
    """Concatenate batches of which all or none are scattered (`Trajectories.concat`)."""
    scattered = [part for part in parts if isinstance(part, ScatteredRound)]
    if len(scattered) < len(parts):
        return Trajectories.concat(parts)
    names = scattered[0].held.own.columns
    own = Trajectories.concat([part.own().with_only(*names) for part in scattered])
    return _scattered(Trajectories.concat(parts), scattered, own)


def _scattered(whole: Trajectories, parts: Sequence[ScatteredRound], own: Trajectories) -> ScatteredRound:
    """Return the sequences of several parts, numbered anew.

    Args:
        whole: the arrays that every process has, of all parts.
        parts: rounds, or sequences of rounds.
        own: the sequences of this process, with their columns per token.
    """
    held = _Rows(
        ranks=parts[0].held.ranks, own=on_the_right(own),
        owners=torch.cat([part.held.owners[part.index] for part in parts]),
        lengths=torch.cat([part.lengths for part in parts]),
        prompt_lengths=torch.cat([part.prompt_lengths for part in parts]),
        num_actions=torch.cat([part.num_actions for part in parts]),
    )  # fmt: skip
    index = torch.arange(len(whole), device=whole.tokens.device)
    learns = torch.cat([part.learns for part in parts])
    return ScatteredRound(
        whole.tokens, whole.mask, whole.action_mask, whole.ended, whole.columns, held=held, index=index, learns=learns
    )


def _places(owners: Tensor) -> Tensor:
    """Return the index of each row among those of its owner, which come in the same order: long[N]."""
    order = owners.argsort(stable=True)
    counts = owners.bincount()
    places = torch.empty_like(owners)
    starts = counts.cumsum(0) - counts
    places[order] = torch.arange(len(owners), device=owners.device) - starts[owners[order]]
    return places
