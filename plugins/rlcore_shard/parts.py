"""The tensors of a checkpoint that all processes write in parallel.

Where the usual format has a file such as `model/model.safetensors`, or a part of one, such a checkpoint has a folder
`model/model.dcp` (`rlcore_shard.parallel_files`). The folders are written under a temporary name, before rank 0
writes the other files, and moved among these before the manifest is written.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

import attrs
from torch import Tensor

from rlcore.checkpoints.manifest import file_entry
from rlcore.checkpoints.state import parts_folder
from rlcore.errors import CheckpointError, ConfigError, RanksError
from rlcore.ranks import Ranks
from rlcore.sharding.tensor_file import PARTS, SUFFIX
from rlcore_shard.parallel_files import read, write_parts

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
    entries: dict[str, dict[str, Any]] = {}
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
