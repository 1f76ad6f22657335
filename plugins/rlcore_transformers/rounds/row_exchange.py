"""The exchange of rows between processes: each receives the rows that it asks for, and nothing else.

A real token takes 4 bytes for its id, one that says whether the policy chose it, and those of its columns.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from rlcore.ranks import Ranks
from rlcore.types import Trajectories


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
