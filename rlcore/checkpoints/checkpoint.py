"""The checkpoints of a run: written atomically, verified when read, pruned to the newest and the best.

checkpoints/
  00000120/            a complete checkpoint: renamed to this name after all its files were synced
    manifest.json      step, score, config, plugins, and the checksum of every other file
    model/ ...         files of the caller
  .tmp-00000130-4711/  a checkpoint that was being written or deleted when its process died; the next process deletes it
  .old-00000120/       a checkpoint that was being replaced; the next process restores it if the new one is missing
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import attrs
from safetensors import SafetensorError

from rlcore.checkpoints.manifest import read_manifest, sync, sync_folder, verify_files, write_manifest
from rlcore.checkpoints.state import io_failure
from rlcore.errors import CheckpointError
from rlcore.logging import get_logger

log = get_logger("rlcore.checkpoints.checkpoint")


@attrs.frozen
class Checkpoint:
    """A verified checkpoint: its folder and its manifest."""

    path: Path
    manifest: Mapping[str, Any] = attrs.field(repr=False)

    @property
    def step(self) -> int:
        """Return the number of finished steps at the time of writing."""
        return int(self.manifest["step"])

    @property
    def score(self) -> float | None:
        """Return the value of the metric by which the best checkpoints are kept; None if there was none."""
        score = self.manifest["score"]
        return None if score is None else float(score)


class Checkpoints:
    """The folder of a run's checkpoints; only one process, rank 0, may use it.

    Args:
        folder: created with the first checkpoint. Unfinished changes of a dead process are rolled back at once.
        keep_last: number of newest checkpoints to keep, at least 1.
        keep_best: number of best checkpoints to keep in addition.
        mode: whether a higher ("max") or a lower ("min") score is better.
    """

    def __init__(
        self, folder: Path, keep_last: int = 2, keep_best: int = 0, mode: Literal["max", "min"] = "max"
    ) -> None:
        if keep_last < 1:
            raise CheckpointError(f"keep_last = {keep_last}: at least one checkpoint must be kept")
        self.folder = folder
        self.keep_last = keep_last
        self.keep_best = keep_best
        self.mode = mode
        self._recover()

    def write(
        self,
        step: int,
        fill: Callable[[Path], None],
        *,
        manifest: Mapping[str, Any],
        score: float | None = None,
    ) -> Path:
        """Write the checkpoint of `step`, prune old checkpoints, and return the folder of the new one.

        A checkpoint of the same step is replaced. Checkpoints of later steps are deleted, because they date from before
        the run was resumed at an earlier step.

        Args:
            step: number of finished steps.
            fill: writes the files of the checkpoint into an empty folder.
            manifest: further fields of the manifest, such as `config` and `plugins`.
            score: the metric for `keep_best`; nan and infinities count as none.

        Raises:
            CheckpointError: the disk is full or fails; the earlier checkpoints are unchanged.
        """
        final = self.folder / f"{step:08d}"
        temporary = self.folder / f".tmp-{step:08d}-{os.getpid()}"
        try:
            _remove(temporary)
            temporary.mkdir(parents=True)
            fill(temporary)
            write_manifest(temporary, step=step, score=score, further=manifest)
            sync_folder(temporary)
            self._put(temporary, final)
        except (OSError, SafetensorError) as error:
            failure = error if isinstance(error, OSError) else io_failure(error)
            if failure is None:
                raise
            shutil.rmtree(temporary, ignore_errors=True)
            raise CheckpointError(self._explain(step, failure)) from error
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
        self._retain(step)
        return final

    def newest_whole(self, warn: Callable[..., None] = log.warning) -> Checkpoint | None:
        """Return the newest checkpoint whose files all match their checksums; None if there is none.

        Args:
            warn: called as `warn(event, checkpoint=..., damage=...)` for each damaged checkpoint that is skipped.
        """
        for path in reversed(self.paths()):
            try:
                return self.open(path)
            except CheckpointError as error:
                warn("checkpoint is damaged; trying the one before", checkpoint=str(path), damage=str(error))
        return None

    @staticmethod
    def open(path: Path) -> Checkpoint:
        """Return the checkpoint in the folder `path` after comparing every file with its checksum.

        Raises:
            CheckpointError: there is no checkpoint, or it is damaged; the message names the file.
        """
        if not path.is_dir():
            raise CheckpointError(f"{path}: there is no checkpoint here; it should be a folder such as 00000120")
        manifest = read_manifest(path)
        verify_files(path, manifest["files"])
        return Checkpoint(path, manifest)

    def paths(self) -> list[Path]:
        """Return the folders of all checkpoints, oldest first, unverified."""
        return list_checkpoints(self.folder)

    def _put(self, temporary: Path, final: Path) -> None:
        old = self.folder / f".old-{final.name}"
        sync(self.folder.parent)
        if final.exists():
            _remove(old)
            final.rename(old)
        try:
            temporary.rename(final)
            sync(self.folder)
        except OSError:
            if final.exists():
                final.rename(temporary)
            if old.exists():
                old.rename(final)
            raise
        _remove(old)

    def _retain(self, newest: int) -> None:
        paths = self.paths()
        current = [path for path in paths if int(path.name) <= newest]
        kept = {*current[-self.keep_last :], *self._best(current)}
        for path in paths:
            if path not in kept:
                try:
                    self._discard(path)
                except OSError as error:
                    log.warning("an old checkpoint could not be removed", checkpoint=str(path), error=str(error))

    def _best(self, paths: list[Path]) -> list[Path]:
        if self.keep_best < 1:
            return []
        sign = 1.0 if self.mode == "max" else -1.0
        ranked = sorted((sign * score, int(path.name), path) for path in paths if (score := _score(path)) is not None)
        return [path for _, _, path in ranked[-self.keep_best :]]

    def _discard(self, path: Path) -> None:
        """Delete a checkpoint after renaming it, so that its name never denotes an incomplete checkpoint."""
        temporary = self.folder / f".tmp-{path.name}-{os.getpid()}-gone"
        path.rename(temporary)
        shutil.rmtree(temporary)

    def _recover(self) -> None:
        for path in _folders(self.folder, ".tmp-*"):
            shutil.rmtree(path, ignore_errors=True)
        for old in _folders(self.folder, ".old-*"):
            final = self.folder / old.name.removeprefix(".old-")
            if final.exists():
                shutil.rmtree(old, ignore_errors=True)
            else:
                old.rename(final)

    def _explain(self, step: int, error: OSError) -> str:
        try:
            free = f"{shutil.disk_usage(self.folder).free / 1e6:.1f} MB are free after removing the incomplete files"
        except OSError:
            free = "the free space is unknown"
        paths = self.paths()
        left = f"the previous checkpoint, {paths[-1]}, is unchanged" if paths else "there is no earlier checkpoint"
        return (
            f"the checkpoint of step {step} could not be written to {self.folder}: {error.strerror or error} ({free}); "
            f"{left}. Free some space (checkpoint.keep_last and keep_best set how many are kept), "
            "then continue with run.resume=auto"
        )


def list_checkpoints(folder: Path) -> list[Path]:
    """Return the folders of the checkpoints in `folder`, oldest first, unverified; nothing is modified."""
    return [path for _, path in sorted((int(path.name), path) for path in _folders(folder, "[0-9]*"))]


def _score(path: Path) -> float | None:
    try:
        return Checkpoint(path, read_manifest(path)).score
    except CheckpointError:
        return None


def _folders(folder: Path, pattern: str) -> Iterator[Path]:
    if folder.is_dir():
        yield from [path for path in folder.glob(pattern) if path.is_dir() and _is_ours(path.name)]


def _is_ours(name: str) -> bool:
    return name.isdigit() or name.startswith((".tmp-", ".old-"))


def _remove(folder: Path) -> None:
    if folder.exists():
        shutil.rmtree(folder)
