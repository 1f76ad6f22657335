"""The rollout store on disk."""

from __future__ import annotations

import os
import shutil
import tempfile
import weakref
from pathlib import Path
from typing import Any

import attrs

from rlcore.errors import ConfigError, DataError, EmptyStore
from rlcore.types import Trajectories
from rlcore_transformers.disk_store.config import DiskStoreConfig
from rlcore_transformers.disk_store.folders import TAKEN, claim_folder, release_folder
from rlcore_transformers.disk_store.shards import Shard, join_shards, write_shard


class DiskStore:
    """A store of trajectories in files, in order of insertion (`rlcore.protocols.RolloutStore`).

    Attributes:
        folder: the store's folder; it is removed with the store or when the process ends, except for kept rounds.
    """

    def __init__(self, config: DiskStoreConfig) -> None:
        if config.keep and config.path is None:
            raise ConfigError(f"store.keep = {config.keep}: set store.path too, the folder of the kept rounds")
        self._keep = config.keep
        parent = Path(tempfile.gettempdir() if config.path is None else config.path)
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

    def state_dict(self) -> dict[str, Any]:
        """Return the stored batches, mapped from disk; a checkpoint of the state does not need the store's files."""
        parts = (join_shards([shard], self.folder) for shard in self._shards)
        return {"parts": [attrs.asdict(part, recurse=False) for part in parts]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
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


def _columns(shard: Shard) -> dict[str, Any]:
    """Return the type of each array and its shape without B and T; these must be equal in all batches."""
    width = shard.kinds["tokens"][1][1:]
    return {name: (dtype, "T" if shape[1:] == width else shape[1:]) for name, (dtype, shape) in shard.kinds.items()}
