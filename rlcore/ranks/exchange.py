"""What processes exchange of a round: numbers of its rows, which all receive, and the rows that each asks for.

Arrays are exchanged as bytes, of rows those of their real tokens only, and nothing is pickled. A real token takes four
bytes for its id, one for whether the policy chose it, and those of its columns, which are four for float32.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from operator import itemgetter

import attrs
import torch
from torch import Tensor

from rlcore.errors import RanksError
from rlcore.ranks import Ranks
from rlcore.types import Trajectories, tensor_on

Layout = list[tuple[str, torch.dtype, bool, tuple[int, ...]]]
"""Name, dtype, whether it is per token, and the shape of an entry of each column, sorted by name."""


def layout_of(rows: Trajectories) -> Layout:
    """Return the layout of the columns."""
    found = []
    for name, array in sorted(rows.columns.items()):
        is_per_token = array.shape[1:] == rows.tokens.shape[1:]
        found.append((name, array.dtype, is_per_token, () if is_per_token else tuple(array.shape[1:])))
    return found


def numbers_of(rows: Trajectories) -> dict[str, Tensor]:
    """Return the columns of one number a row, in the order of their names, which is the same on all processes."""
    return {name: array for name, array in sorted(rows.columns.items()) if array.dim() == 1}


def alike(ranks: Ranks, own: Trajectories) -> Trajectories:
    """Return the rows of this process; where it has none, with the columns that those of others have.

    Raises:
        RanksError: the rows of two processes have different columns.
    """
    mine = layout_of(own)
    seen = gather(ranks, tensor_on(ranks.device, [len(own), zlib.crc32(repr(mine).encode())]))
    if len({int(checksum) for _, checksum in seen}) == 1:
        return own
    layouts = ranks.gather([(len(own), mine)])
    found = [layout for count, layout in layouts if count]
    if any(layout != found[0] for layout in found):
        each = "; ".join(f"process {rank}: {layout}" for rank, (_, layout) in enumerate(layouts))
        raise RanksError(f"the columns of a round differ between processes: {each}; return the same on all")
    if len(own) or not found:
        return own
    shape = own.tokens.shape
    columns = {
        name: own.tokens.new_zeros(shape if is_per_token else (0, *entry), dtype=dtype)
        for name, dtype, is_per_token, entry in found[0]
    }
    return attrs.evolve(own, columns=columns)


def gather(ranks: Ranks, array: Tensor) -> list[Tensor]:
    """Return the arrays of all processes, which have the same shape and dtype."""
    every = [torch.empty_like(array) for _ in range(ranks.world)]
    with ranks.collective("statistics of rows"):
        torch.distributed.all_gather(every, array)
    return every


def everywhere(ranks: Ranks, arrays: Sequence[Tensor], counts: Sequence[int]) -> list[Tensor]:
    """Return arrays of one entry a row, [K, ...], of all processes one after another, which exchange them as bytes.

    Args:
        ranks: the processes.
        arrays: of the rows of this process.
        counts: the number of rows of each process.
    """
    here = [array.flatten(1) if array.dim() > 1 else array[:, None] for array in arrays]
    widths = [each.shape[1] * each.itemsize for each in here]
    packed = torch.cat([each.contiguous().view(torch.uint8) for each in here], 1)
    room = packed.new_zeros(max(counts) - len(packed), packed.shape[1])
    every = gather(ranks, torch.cat([packed, room]))
    whole = torch.cat([each[:count] for each, count in zip(every, counts, strict=True)])
    return [
        part.flatten().clone().view(array.dtype).view(len(whole), *array.shape[1:])  # copies: views need aligned memory
        for part, array in zip(whole.split(widths, 1), arrays, strict=True)
    ]


def places_of(owners: Tensor) -> Tensor:
    """Return the index of each row among those of its owner, which come in the same order: long[B]."""
    order = owners.argsort(stable=True)
    counts = owners.bincount()
    places = torch.empty_like(owners)
    starts = counts.cumsum(0) - counts
    places[order] = torch.arange(len(owners), device=owners.device) - starts[owners[order]]
    return places


def exchange(
    ranks: Ranks, own: Trajectories, wanted: Sequence[Tensor], owners: Tensor, lengths: Tensor
) -> Trajectories:
    """Return the rows that this process wants, from the processes that have them, padded on the right.

    Args:
        ranks: the processes.
        own: the rows of this process. Columns of one number a row are not sent: every process has them.
        wanted: the rows that each process wants, long[...].
        owners: long[B], the process that has each row.
        lengths: long[B], its number of real tokens.

    Returns:
        The rows in the order in which they are wanted; `ended` is True for all of them.
    """
    own = attrs.evolve(own, columns={name: array for name, array in own.columns.items() if array.dim() > 1})
    places, layout = places_of(owners), layout_of(own)
    given = (places[rows[owners[rows] == ranks.rank]] for rows in wanted)
    packed = [_pack(own.each(itemgetter(rows)), layout) for rows in given]
    mine = wanted[ranks.rank]
    asked = [(owners[mine] == rank).nonzero()[:, 0] for rank in range(ranks.world)]
    per_row, per_token = _unit(layout)
    sizes = [per_row * len(rows) + per_token * int(lengths[mine[rows]].sum()) for rows in asked]
    received = torch.empty(sum(sizes), dtype=torch.uint8, device=own.tokens.device)
    with ranks.collective("exchange of rows"):
        torch.distributed.all_to_all_single(received, torch.cat(packed), sizes, [len(part) for part in packed])
    width = int(lengths[mine].max())
    parts = [
        _unpack(part, layout, lengths[mine[rows]], width)
        for part, rows in zip(received.split(sizes), asked, strict=True)
        if len(rows)
    ]
    return Trajectories.concat(parts).rows(torch.cat(asked).argsort())


def _unit(layout: Layout) -> tuple[int, int]:
    """Return the bytes that a row takes, and those that each of its real tokens takes."""
    per_row, per_token = 0, 5  # a token's id, and whether it is chosen
    for _, dtype, is_per_token, shape in layout:
        per_token += dtype.itemsize if is_per_token else 0
        per_row += 0 if is_per_token else torch.Size(shape).numel() * dtype.itemsize
    return per_row, per_token


def _pack(rows: Trajectories, layout: Layout) -> Tensor:
    """Return the real tokens of rows, and their columns: uint8[...]."""
    real = rows.mask.flatten().nonzero()[:, 0]  # found once, while indexing by the mask finds it for every array
    arrays = [rows.tokens.flatten()[real].int(), rows.action_mask.flatten()[real]]
    for name, _, is_per_token, _ in layout:
        arrays.append(rows[name].flatten()[real] if is_per_token else rows[name])
    return torch.cat([array.contiguous().flatten().view(torch.uint8) for array in arrays])


def _unpack(packed: Tensor, layout: Layout, lengths: Tensor, width: int) -> Trajectories:
    """Return rows of these lengths from their bytes, padded on the right with zeros to `width` tokens."""
    mask = torch.arange(width, device=packed.device) < lengths[:, None]
    real, at = int(lengths.sum()), 0

    def read(dtype: torch.dtype, *shape: int) -> Tensor:
        nonlocal at
        start, at = at, at + torch.Size(shape).numel() * dtype.itemsize
        return packed[start:at].clone().view(dtype).view(shape)  # a copy, because views need aligned memory

    def place(dtype: torch.dtype) -> Tensor:
        return torch.zeros(mask.shape, dtype=dtype, device=packed.device).masked_scatter_(mask, read(dtype, real))

    tokens, chosen = place(torch.int32).long(), place(torch.bool)
    columns = {
        name: place(dtype) if is_per_token else read(dtype, len(lengths), *shape)
        for name, dtype, is_per_token, shape in layout
    }
    return Trajectories(tokens, mask, chosen, torch.ones_like(lengths, dtype=torch.bool), columns)
