"""Arrow files of trajectories, and one memory-mapped batch joined from several files."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
import pyarrow as pa
import torch
from datasets import Dataset
from datasets.arrow_writer import ArrowWriter
from torch import Tensor

from rlcore.errors import DataError
from rlcore.types import Trajectories

ROWS_AT_ONCE = 128
"""Sequences decoded at once while files are joined."""
FIELDS = ("tokens", "mask", "action_mask", "ended")
WRITTEN_AS = {
    dtype: dtype
    for dtype in (
        torch.bool, torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64,
        torch.float16, torch.float32, torch.float64,
    )
} | {torch.bfloat16: torch.float32}  # fmt: skip
"""The stored type of each type. Arrow has no bfloat16; float32 represents all of its values."""


@attrs.frozen
class Shard:
    """The file of one batch, with the types and shapes of its arrays.

    Attributes:
        path: the Arrow file, with a row per sequence and a column per array.
        kinds: data type and shape of each array.
    """

    path: Path
    kinds: Mapping[str, tuple[torch.dtype, tuple[int, ...]]]

    def __len__(self) -> int:
        return self.kinds["tokens"][1][0]


def write_shard(path: Path, batch: Trajectories) -> Shard:
    """Write `batch` to the file `path` atomically.

    Raises:
        DataError: an array has a type, shape or name that cannot be stored.
        OSError: the disk is full or fails.
    """
    arrays = {name: getattr(batch, name) for name in FIELDS}
    for name, array in batch.columns.items():
        if name in FIELDS:
            raise DataError(f"column '{name}' cannot be stored: trajectories have an array of that name; rename it")
        arrays[name] = array
    table = pa.table({name: _to_arrow(name, array) for name, array in arrays.items()})
    temporary = path.with_name(f".{path.name}")
    try:
        with ArrowWriter(path=str(temporary), writer_batch_size=ROWS_AT_ONCE) as writer:
            writer.write_table(table)
            writer.finalize()
        temporary.rename(path)
    finally:
        temporary.unlink(missing_ok=True)
    return Shard(path, {name: (array.dtype, tuple(array.shape)) for name, array in arrays.items()})


def join_shards(shards: Sequence[Shard], folder: Path) -> Trajectories:
    """Return the concatenated batches of `shards`, padded on the right as in `Trajectories.concat`.

    Every array is a private mapping (MAP_PRIVATE) of an unlinked file in `folder`: pages are loaded on access, writes
    do not reach the file, and its disk space is released with the last tensor that uses it.
    """
    widths = [shard.kinds["tokens"][1][1] for shard in shards]
    arrays: dict[str, Tensor] = {}
    for name, (dtype, first) in shards[0].kinds.items():
        per_token = first[1:] == (widths[0],)
        shape = (sum(map(len, shards)), *((max(widths),) if per_token else first[1:]))
        parts = (_widened(part, max(widths)) if per_token else part for part in _parts(shards, name))
        arrays[name] = _mapped(parts, dtype, shape, folder)
    fields = {name: arrays.pop(name) for name in FIELDS}
    return Trajectories(**fields, columns=arrays)


def _to_arrow(name: str, tensor: Tensor) -> Any:
    if tensor.dtype not in WRITTEN_AS or tensor.dim() not in (1, 2):
        raise DataError(
            f"array '{name}' cannot be stored: it is {tensor.dtype} of shape {list(tensor.shape)}; the store `disk` "
            f"holds [B] and [B, T] of {', '.join(str(dtype).removeprefix('torch.') for dtype in WRITTEN_AS)}"
        )
    flat = pa.array(tensor.detach().to("cpu", WRITTEN_AS[tensor.dtype]).flatten().numpy())
    if tensor.dim() == 1:
        return flat
    height, width = tensor.shape
    if width == 0:  # a fixed-size list must have a size
        return pa.array([[]] * height, type=pa.list_(flat.type))
    return pa.FixedSizeListArray.from_arrays(flat, width)


def _parts(shards: Sequence[Shard], name: str) -> Iterator[Tensor]:
    """Yield the array `name` of all shards in chunks of rows."""
    for shard in shards:
        dtype, shape = shard.kinds[name]
        for chunk in Dataset.from_file(str(shard.path)).data.column(name).chunks:
            flat = chunk.flatten() if len(shape) == 2 else chunk
            # Copied, since Arrow's arrays are read-only and tensors are not.
            rows = torch.tensor(flat.to_numpy(zero_copy_only=False), dtype=WRITTEN_AS[dtype])
            yield rows.to(dtype).reshape(len(chunk), *shape[1:])


def _widened(rows: Tensor, width: int) -> Tensor:
    return torch.nn.functional.pad(rows, (0, width - rows.shape[1]))


def _mapped(parts: Iterator[Tensor], dtype: torch.dtype, shape: tuple[int, ...], folder: Path) -> Tensor:
    """Write rows to a temporary file and return them as a tensor mapped from it; the file is unlinked at once."""
    with tempfile.NamedTemporaryFile(dir=folder, prefix=".mapped-") as file:
        for part in parts:
            file.write(part.contiguous().view(torch.uint8).numpy().data if part.numel() else b"")
        file.flush()
        size = torch.Size(shape).numel()
        # Rows are written to the file, not the mapping, so that a full disk raises OSError instead of SIGBUS.
        flat = torch.from_file(file.name, shared=False, size=size, dtype=dtype) if size else torch.empty(0, dtype=dtype)
    return flat.view(shape)
