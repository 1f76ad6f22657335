"""Folders of tensors that the processes of a run write in parallel, with `torch.distributed.checkpoint`.

Each process writes the parts that it keeps to safetensors files of its own, whose metadata says where the parts lie in
the whole tensors (`HuggingFaceStorageWriter`). Any number of processes reads whole tensors or their rows from them.

Also in this file: the tensors of a checkpoint that all processes write in parallel; copy a checkpoint that all
processes wrote in parallel to one in which tensors are whole.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from functools import partial
from itertools import accumulate
from pathlib import Path
from tempfile import NamedTemporaryFile
from types import EllipsisType
from typing import Any

import attrs
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor
from torch.distributed.tensor import DTensor

from rlcore.checkpoints.checkpoint import Checkpoints
from rlcore.checkpoints.manifest import OWN_FIELDS, file_entry, write_manifest
from rlcore.checkpoints.run_folder import RunDir, put_in_place
from rlcore.checkpoints.state import io_failure, parts_folder
from rlcore.errors import CheckpointError, ConfigError, RanksError, io_remedy
from rlcore.ranks import Ranks
from rlcore.sharding import PARTS, SUFFIX, SavedTensor, TensorFile, saved_parts, write_weights

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


__all__ = ["StagedParts", "check_shared", "read", "stage"]

MODEL, TRAINER = Path("model"), Path("trainer.safetensors")


@attrs.frozen
class StagedParts:
    """Folders of tensors that are written and not yet part of a checkpoint.

    Attributes:
        folder: the temporary folder that contains them.
        has_weights: whether weights are among them.
        has_state: whether tensors of the trainer's state are among them.
        entries: path in the checkpoint → entry in its manifest, of every file in the folders.
        failure: why they could not be written; None if they are complete.
    """

    folder: Path
    has_weights: bool = False
    has_state: bool = False
    entries: Mapping[str, Mapping[str, Any]] = attrs.field(factory=dict)
    failure: Exception | None = None

    def move(self, checkpoint: Path) -> None:
        """Move the folders into that of a checkpoint, or raise what kept them from being written."""
        if self.failure is not None:
            raise self.failure
        if not (self.has_weights or self.has_state):
            return
        for place in sorted(self.folder.rglob(f"*{SUFFIX}")):
            place.rename(checkpoint / place.relative_to(self.folder))

    def remove(self) -> None:
        """Delete the temporary folder."""
        shutil.rmtree(self.folder, ignore_errors=True)


def stage(folder: Path, ranks: Ranks, *, weights: Mapping[str, Tensor], state: Mapping[str, Tensor]) -> StagedParts:
    """Write what each process keeps of weights and of the trainer's state; collective.

    Args:
        folder: the temporary folder, the same on every process.
        ranks: this process's place among the others.
        weights: name → a part of a weight.
        state: name → a part of another tensor.

    Raises:
        RanksError: another process has ended.
    """
    entries: dict[str, dict[str, object]] = {}
    failure: Exception | None = None
    try:
        with ranks.translated():
            for place, parts in ((MODEL / PARTS, weights), (parts_folder(TRAINER), state)):
                if parts:
                    write_parts(folder / place, parts, world=ranks.world)
            entries = _entries(folder, ranks)
    except RanksError:
        raise
    except Exception as error:  # noqa: BLE001  rank 0 raises it where it writes the checkpoint
        failure = error
    return StagedParts(folder, bool(weights), bool(state), entries, failure)


def check_shared(folder: Path, ranks: Ranks) -> None:
    """Check that every process sees the folder in which process 0 writes checkpoints; collective.

    Raises:
        ConfigError: a process does not see it.
    """

    def make() -> str:
        with NamedTemporaryFile(dir=folder, prefix=".tmp-shared-", delete=False) as file:
            return Path(file.name).name

    probe = folder / ranks.on_main(make)
    blind = ranks.gather([] if probe.exists() else [ranks.rank])
    if ranks.is_main:
        probe.unlink()
    if blind:
        raise ConfigError(
            f"checkpoint.format = 'dcp': process {blind[0]} does not see {folder}, where process 0 writes: put "
            "run.root on a file system that all machines share, or set checkpoint.format=safetensors"
        )


def _entries(folder: Path, ranks: Ranks) -> dict[str, dict[str, Any]]:
    """Return path → entry in the manifest of the files in a folder, divided among the processes; collective.

    Raises:
        CheckpointError: this process does not see a file that another one has written.
        OSError: a file cannot be read.
    """
    seen = sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    failure, own = None, {}
    try:
        own = {name: file_entry(folder / name) for name in seen[ranks.rank :: ranks.world]}
    except OSError as error:
        failure = error
    every = ranks.gather([(seen, own, failure)])
    for names, _, problem in every:
        if problem is not None:
            raise problem
        if missing := sorted({*names} - {*seen}):
            raise CheckpointError(
                f"{folder}: process {ranks.rank} does not see {missing[0]}, which another process has written: with "
                "checkpoint.format=dcp, run.root must be on a file system that all machines share; without one, set "
                "checkpoint.format=safetensors"
            )
    return {name: entry for _, entries, _ in every for name, entry in entries.items()}


def export_checkpoint(checkpoint: Path, place: Path) -> None:
    """Copy a checkpoint to the folder `place`, with whole tensors in safetensors files.

    Raises:
        CheckpointError: the checkpoint is missing or damaged, or the copy cannot be written.
        DamagedCheckpoint: a file of the checkpoint differs from its checksum.
    """
    if place.exists():
        raise CheckpointError(f"{place}: exists already: name a folder that does not exist")
    manifest = Checkpoints.open(checkpoint).manifest
    beside = place.with_name(f".tmp-{place.name}")
    try:
        shutil.rmtree(beside, ignore_errors=True)
        shutil.copytree(checkpoint, beside, ignore=shutil.ignore_patterns(f"*{SUFFIX}"))
        if weights := saved_parts(checkpoint / MODEL / PARTS):
            write_weights(beside / MODEL, _layout(weights), ((name, each[...]) for name, each in weights.items()))
        if state := saved_parts(checkpoint / parts_folder(TRAINER)):
            _complete(checkpoint / TRAINER, state, beside / TRAINER)
        start = RunDir(checkpoint.parent.parent).start
        if manifest.get("start") is not None and start.is_dir():
            shutil.copytree(start, RunDir(beside).start)
        further = {name: value for name, value in manifest.items() if name not in OWN_FIELDS}
        write_manifest(beside, step=manifest["step"], score=manifest["score"], further=further)
        put_in_place(beside, place)
    except Exception as error:
        failure = io_failure(error)
        if failure is None:
            raise
        raise CheckpointError(f"{place}: could not be written: {failure}; {io_remedy(failure)}") from error
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def _complete(source: Path, parts: Mapping[str, SavedTensor], target: Path) -> None:
    """Write a safetensors file with the tensors of another one and further ones."""
    with safe_open(str(source), framework="pt", device="cpu") as file:
        tensors = {name: SavedTensor.of(file.get_tensor(name)) for name in file.keys()}  # noqa: SIM118  not a dict
        tensors |= parts
        with TensorFile(target, _layout(tensors), file.metadata()) as whole:
            for name, saved in tensors.items():
                whole.write(name, saved[...])


def _layout(tensors: Mapping[str, SavedTensor]) -> dict[str, Tensor]:
    return {name: torch.empty(each.shape, dtype=each.dtype, device="meta") for name, each in tensors.items()}
