"""The rollout store on disk.

Also in this file: folders of stores, each claimed by one process, and removed once it has ended; rollouts as files of
Arrow that are mapped into memory.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
import weakref
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import attrs
import pyarrow as pa
import torch
from datasets import Dataset
from datasets.arrow_writer import ArrowWriter
from torch import Tensor

from rlcore.config import path_named
from rlcore.errors import ConfigError, DataError, EmptyStore
from rlcore.types import State, Trajectories
from rlcore_transformers.disk_store.config import DiskStoreConfig


class DiskStore:
    """A store of trajectories in files, in order of insertion (`rlcore.protocols.RolloutStore`).

    Attributes:
        folder: the store's folder; it is removed with the store or when the process ends, except for kept rounds.
    """

    def __init__(self, config: DiskStoreConfig) -> None:
        if config.keep and config.path is None:
            raise ConfigError(f"store.keep = {config.keep}: set store.path too, the folder of the kept rounds")
        self._keep = config.keep
        parent = path_named(tempfile.gettempdir() if config.path is None else config.path)
        try:
            self.folder, lock = claim_folder(parent)
        except OSError as error:
            raise ConfigError(f"store.path = {str(parent)!r}: no folder can be made there: {error}") from error
        weakref.finalize(self, release_folder, self.folder, lock, os.getpid())
        self._shards: list[Shard] = []
        self._num_written = self._num_takes = 0

    def append(self, batch: Trajectories) -> None:
        """Write a batch to its own file; all batches must have the same columns, of the same types.

        Raises:
            DataError: its arrays differ from those of earlier batches, or cannot be stored in Arrow.
            OSError: the disk is full or fails; earlier batches are unchanged.
        """
        shard = write_shard(self.folder / f"{self._num_written:06d}.arrow", batch)
        if self._shards and (ours := _columns(shard)) != (theirs := _columns(self._shards[0])):
            shard.path.unlink()
            differ = sorted(f"'{name}'" for name in ours.keys() | theirs.keys() if ours.get(name) != theirs.get(name))
            raise DataError(
                f"batch {len(self._shards)} of the store differs from batch 0 in {', '.join(differ)}: all batches "
                "between two takes need the same columns, of the same types and numbers of dimensions"
            )
        self._shards.append(shard)
        self._num_written += 1

    def take(self) -> Trajectories:
        """Return all batches as one batch on the CPU, mapped from disk, and empty the store.

        Raises:
            EmptyStore: no batch was appended since the last call.
            OSError: the disk is full or fails; the store is unchanged.
        """
        if not self._shards:
            raise EmptyStore("the rollout store is empty: append a batch before taking one")
        batch = join_shards(self._shards, self.folder)
        self._clear(keep=self._keep)
        return batch

    def __len__(self) -> int:
        return sum(len(shard) for shard in self._shards)

    def state_dict(self) -> State:
        """Return the stored batches, mapped from disk; a checkpoint of the state does not need the store's files."""
        parts = (join_shards([shard], self.folder) for shard in self._shards)
        return {"parts": [attrs.asdict(part, recurse=False) for part in parts]}

    def load_state_dict(self, state: State) -> None:
        """Restore the state that `state_dict` returned; the store `memory` writes and reads the same state."""
        self._clear(keep=0)
        for part in state["parts"]:
            self.append(Trajectories(**part))

    def _clear(self, *, keep: int) -> None:
        shards, self._shards = self._shards, []
        for shard in shards:
            if keep:
                self._set_aside(shard)
            else:
                shard.path.unlink()
        self._num_takes += bool(keep)

    def _set_aside(self, shard: Shard) -> None:
        """Move a file to the current kept round, and delete the oldest rounds beyond `keep`."""
        taken = self.folder / TAKEN
        (taken / f"{self._num_takes:06d}").mkdir(parents=True, exist_ok=True)
        shard.path.rename(taken / f"{self._num_takes:06d}" / shard.path.name)
        for old in sorted(taken.iterdir())[: -self._keep]:
            shutil.rmtree(old)


def _columns(shard: Shard) -> dict[str, object]:
    """Return the type of each array and its shape without B and T; these must be equal in all batches."""
    width = shard.kinds["tokens"][1][1:]
    return {name: (dtype, "T" if shape[1:] == width else shape[1:]) for name, (dtype, shape) in shard.kinds.items()}


PREFIX = "rlcore-rollouts-"
LOCK = ".lock"
TAKEN = "taken"
"""Subfolder of rounds that are kept after they are taken; only this subfolder remains after the process."""


def claim_folder(parent: Path) -> tuple[Path, int]:
    """Create a folder in `parent` for one store, and remove the folders of ended processes.

    Returns:
        The folder, and the descriptor of its lock; the folder is in use while a process holds the lock.
    """
    parent.mkdir(parents=True, exist_ok=True)
    for folder in parent.glob(f"{PREFIX}*"):
        _remove_if_abandoned(folder)
    # The folder is renamed to the name that other processes search for after it is locked.
    new = Path(tempfile.mkdtemp(prefix=f".new-rank{os.environ.get('RANK', '0')}-", dir=parent))
    lock = os.open(new / LOCK, os.O_CREAT | os.O_RDWR, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)
    folder = new.with_name(PREFIX + new.name.removeprefix(".new-"))
    new.rename(folder)
    return folder, lock


def release_folder(folder: Path, lock: int, pid: int) -> None:
    """Remove a folder, except for kept rounds, and its lock; in a forked child, which is not `pid`, do nothing."""
    if os.getpid() == pid:
        _remove(folder)
        os.close(lock)


def _remove_if_abandoned(folder: Path) -> None:
    try:
        lock = os.open(folder / LOCK, os.O_RDWR)
    except OSError:  # the folder of another user, or one with nothing but kept rounds
        return
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:  # its process is running
        return
    else:
        _remove(folder)
    finally:
        os.close(lock)


def _remove(folder: Path) -> None:
    if not (folder / TAKEN).is_dir():
        shutil.rmtree(folder, ignore_errors=True)
        return
    for child in folder.iterdir():
        if child.name != TAKEN:
            child.unlink(missing_ok=True)


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


def _to_arrow(name: str, tensor: Tensor) -> object:
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
