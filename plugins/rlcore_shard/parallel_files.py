"""Folders of tensors that the processes of a run write in parallel, with `torch.distributed.checkpoint`.

Each process writes the parts that it keeps to safetensors files of its own, whose metadata says where the parts lie in
the whole tensors (`HuggingFaceStorageWriter`). Any number of processes reads whole tensors or their rows from them.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from itertools import accumulate
from pathlib import Path
from types import EllipsisType
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor
from torch.distributed.tensor import DTensor

from rlcore.errors import CheckpointError
from rlcore.sharding.tensor_file import SavedTensor

LARGEST = 2**28
"""Bytes of the files of a process, about: torch copies what belongs to a file before it writes it."""


def write_parts(folder: Path, parts: Mapping[str, Tensor], *, world: int) -> None:
    """Write tensors of which each process keeps a part (`DTensor`) to a folder; collective.

    Args:
        folder: the folder, which is made; every process has to reach it.
        parts: name → this process's part, on every process in the same order; a tensor that is no part is written once.
        world: number of processes.

    Raises:
        Exception: what the first process raised that failed, such as an `OSError`; on every process.
    """
    from torch.distributed.checkpoint.api import CheckpointException  # takes a second to import
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter
    from torch.distributed.checkpoint.state_dict_saver import save

    ends = accumulate(part.numel() * part.itemsize for part in parts.values())
    files = {name: 1 + end // (LARGEST * world) for name, end in zip(parts, ends, strict=True)}
    writer = HuggingFaceStorageWriter(str(folder), fqn_to_index_mapping=files, save_distributed=True)
    try:
        save(
            {name: part if isinstance(part, DTensor) else _own(part) for name, part in parts.items()},
            storage_writer=writer,
        )
    except CheckpointException as error:  # no subclass of Exception
        raise next(cause for cause, _ in error.failures.values()) from error


def _own(tensor: Tensor) -> Tensor:
    """Return a copy in memory of its own, which is what safetensors writes."""
    return tensor.detach().clone(memory_format=torch.contiguous_format)


def read(folder: Path) -> dict[str, SavedTensor]:
    """Return the tensors in a folder that `write_parts` wrote.

    Raises:
        CheckpointError: the folder cannot be read.
    """
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader

    reader = HuggingFaceStorageReader(str(folder))
    try:
        metadata = reader.read_metadata()
    except (OSError, ValueError, KeyError, SafetensorError) as error:
        raise CheckpointError(f"{folder}: cannot be read: {error}") from error
    reader.set_up_storage_reader(metadata, is_coordinator=True)
    tensors: dict[str, Any] = metadata.state_dict_metadata
    return {
        name: SavedTensor(each.size, each.properties.dtype, partial(_read, reader, name, each))
        for name, each in tensors.items()
    }


def _read(reader: Any, name: str, tensor: Any, index: slice | EllipsisType) -> Tensor:
    """Return the rows of a tensor, from the files of the processes that wrote them."""
    from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
    from torch.distributed.checkpoint.metadata import ChunkStorageMetadata
    from torch.distributed.checkpoint.planner import LoadPlan
    from torch.distributed.checkpoint.planner_helpers import create_read_items_for_chunk_list

    class Rows(DefaultLoadPlanner):
        def lookup_tensor(self, _: object) -> Tensor:
            return rows

    first, shape = 0, list(tensor.size)
    if isinstance(index, slice):
        first, last, _ = index.indices(shape[0])
        shape[0] = max(0, last - first)
    rows = torch.empty(shape, dtype=tensor.properties.dtype)
    offsets = torch.Size([first, *[0] * len(shape)][: len(shape)])
    items = create_read_items_for_chunk_list(name, tensor, [ChunkStorageMetadata(offsets=offsets, sizes=rows.shape)])
    reader.read_data(LoadPlan(items), Rows()).wait()
    return rows
