"""Trajectories as one tensor of bytes, in which ranks exchange them: real tokens only, and nothing is pickled.

A row takes one byte for `ended` and those of its per-sequence columns; a token slot, padding included, one byte for
both masks; a real token four for its id, and those of its per-token columns, which are four for float32.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence

import torch
from torch import Tensor

from rlcore.types import Trajectories


def layout(batch: Trajectories) -> list[tuple[str, torch.dtype, bool, tuple[int, ...]]]:
    """Return name, dtype, whether it is per token, and the shape of an entry of each column, sorted by name."""
    found = []
    for name, array in sorted(batch.columns.items()):
        is_per_token = _is_per_token(array, batch)
        found.append((name, array.dtype, is_per_token, () if is_per_token else tuple(array.shape[1:])))
    return found


def header(batch: Trajectories) -> list[int]:
    """Return what another rank needs to read the bytes of a batch.

    Returns:
        the numbers of rows, of token slots in a row and of real tokens, and a checksum of the layout.
    """
    return [len(batch), batch.tokens.shape[1], int(batch.mask.sum()), zlib.crc32(repr(layout(batch)).encode())]


def num_bytes(batch: Trajectories, numbers: Sequence[int]) -> int:
    """Return the number of bytes of a batch with the columns of `batch` and the given header."""
    rows, width, real, _ = numbers
    size = rows * (1 + width) + 4 * real
    for _, dtype, is_per_token, shape in layout(batch):
        size += (real if is_per_token else rows) * torch.Size(shape).numel() * dtype.itemsize
    return size


def pack(batch: Trajectories) -> Tensor:
    """Return the bytes of a batch: uint8[num_bytes]."""
    flags = batch.mask.to(torch.uint8) + 2 * batch.action_mask.to(torch.uint8)
    real = batch.mask.flatten().nonzero()[:, 0]  # found once, while indexing by the mask finds it for every array
    arrays = [batch.ended, flags, batch.tokens.flatten()[real].int()]
    for _, array in sorted(batch.columns.items()):
        arrays.append(array.flatten()[real] if _is_per_token(array, batch) else array)
    return torch.cat([array.contiguous().flatten().view(torch.uint8) for array in arrays])


def unpack(packed: Tensor, batch: Trajectories, numbers: Sequence[int]) -> Trajectories:
    """Return the batch of another rank; padding is zero.

    Args:
        packed: uint8[num_bytes] or longer, on any device.
        batch: this rank's batch, with the same columns.
        numbers: the header that the other rank sent.
    """
    rows, width, _, _ = numbers
    at = 0

    def read(dtype: torch.dtype, *shape: int) -> Tensor:
        nonlocal at
        start, at = at, at + torch.Size(shape).numel() * dtype.itemsize
        return packed[start:at].clone().view(dtype).view(shape)  # a copy, because views need aligned memory

    ended, flags = read(torch.bool, rows), read(torch.uint8, rows, width)
    mask = (flags & 1).bool()
    real = int(numbers[2])

    def place(dtype: torch.dtype) -> Tensor:
        return torch.zeros(rows, width, dtype=dtype, device=packed.device).masked_scatter_(mask, read(dtype, real))

    tokens = place(torch.int32).long()
    columns = {
        name: place(dtype) if is_per_token else read(dtype, rows, *shape)
        for name, dtype, is_per_token, shape in layout(batch)
    }
    return Trajectories(tokens, mask, (flags & 2).bool(), ended, columns)


def _is_per_token(array: Tensor, batch: Trajectories) -> bool:
    return array.shape[1:] == batch.tokens.shape[1:]
