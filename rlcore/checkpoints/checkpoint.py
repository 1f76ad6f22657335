"""The checkpoints of a run: written atomically, verified when read, pruned to the newest and the best.

checkpoints/
  00000120/            a complete checkpoint: renamed to this name after all its files were synced
    manifest.json      step, score, config, plugins, and the checksum of every other file
    model/ ...         files of the caller
  .tmp-00000130-4711/  a checkpoint that was being written or deleted when its process died; the next process deletes it
  .old-00000120/       a checkpoint that was being replaced; the next process restores it if the new one is missing
"""

from __future__ import annotations

import errno
import os
import shutil
import stat
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

import attrs

from rlcore.checkpoints.manifest import read_manifest, unreadable, verify_files, write_manifest
from rlcore.checkpoints.run_folder import OLD, put_back, put_in_place, remove_folder
from rlcore.checkpoints.state import io_failure
from rlcore.errors import CheckpointError, DamagedCheckpoint, io_remedy
from rlcore.logging import get_logger

log = get_logger("rlcore.checkpoints.checkpoint")
_FULL = {errno.ENOSPC, errno.EDQUOT}


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
        folder: created with the first checkpoint. A checkpoint that a dead process was replacing is restored at once.
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
        self._verified: dict[Path, Checkpoint | None] = {}
        self._restore_replaced()

    def write(
        self,
        step: int,
        fill: Callable[[Path], None],
        *,
        manifest: Mapping[str, object],
        score: float | None = None,
        entries: Mapping[str, Mapping[str, object]] | None = None,
    ) -> Path:
        """Write the checkpoint of `step`, prune old checkpoints, and return the folder of the new one.

        A checkpoint of the same step is replaced. Checkpoints of later steps are deleted, because they date from before
        the run was resumed at an earlier step.

        Args:
            step: number of finished steps.
            fill: writes the files of the checkpoint into an empty folder.
            manifest: further fields of the manifest, such as `config` and `plugins`.
            score: the metric for `keep_best`; nan and infinities count as none.
            entries: sizes and checksums of files of the checkpoint, where they are known (`write_manifest`).

        Raises:
            CheckpointError: the disk is full or fails, or the checkpoint to replace cannot be read; all checkpoints are
                unchanged.
        """
        final = self.folder / f"{step:08d}"
        temporary = self.folder / f".tmp-{step:08d}-{os.getpid()}"
        if final in self.paths() and self._verified.get(final) is None:
            with suppress(DamagedCheckpoint):
                self.open(final)
        try:
            _remove(temporary)
            temporary.mkdir(parents=True)
            fill(temporary)
            contents = write_manifest(temporary, step=step, score=score, further=manifest, entries=entries)
            put_in_place(temporary, final)
            self._verified[final] = Checkpoint(final, contents)
        except Exception as error:
            failure = io_failure(error)
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

        Raises:
            CheckpointError: a newer one than those that match cannot be read; it may be intact, so it is not skipped.
        """
        for path in reversed(self.paths()):
            try:
                return self.open(path)
            except DamagedCheckpoint as error:
                warn("checkpoint is damaged; trying the one before", checkpoint=str(path), damage=str(error))
        return None

    @staticmethod
    def open(path: Path) -> Checkpoint:
        """Return the checkpoint in the folder `path` after comparing every file with its checksum.

        Raises:
            DamagedCheckpoint: a file is missing or differs from its checksum; the message names it.
            CheckpointError: there is no checkpoint, it cannot be read, or it is of another schema.
        """
        try:
            is_folder = stat.S_ISDIR(path.stat().st_mode)
        except (FileNotFoundError, NotADirectoryError, ValueError):  # a ValueError: no file can have this name
            is_folder = False
        except OSError as error:
            raise unreadable(path, error) from error
        if not is_folder:
            raise CheckpointError(f"{path}: there is no checkpoint here; it should be a folder such as 00000120")
        manifest = read_manifest(path)
        verify_files(path, manifest["files"])
        return Checkpoint(path, manifest)

    def trust(self, checkpoint: Checkpoint) -> None:
        """Count a checkpoint as verified, so that it can be pruned; `open` has verified it."""
        self._verified[checkpoint.path] = checkpoint

    def paths(self) -> list[Path]:
        """Return the folders of all checkpoints, oldest first, unverified."""
        return list_checkpoints(self.folder)

    def _retain(self, newest: int) -> None:
        """Delete checkpoints that are neither among the newest nor among the best.

        Only checkpoints that this object has written or verified count, and only these are deleted.
        """
        whole = [checkpoint for path in self.paths() if (checkpoint := self._verify(path)) is not None]
        current = [checkpoint for checkpoint in whole if int(checkpoint.path.name) <= newest]
        kept = {checkpoint.path for checkpoint in [*current[-self.keep_last :], *self._best(current)]}
        for path in (checkpoint.path for checkpoint in whole if checkpoint.path not in kept):
            try:
                self._discard(path)
            except OSError as error:
                log.warning("an old checkpoint could not be removed", checkpoint=str(path), error=str(error))

    def _verify(self, path: Path) -> Checkpoint | None:
        """Return the checkpoint at `path` if its files match their checksums; all but the manifest are read once."""
        known = self._verified.get(path, False)
        if known is None:
            return None
        try:
            self._verified[path] = Checkpoint(path, read_manifest(path)) if known else self.open(path)
        except CheckpointError as error:
            self._verified[path] = None
            log.warning("checkpoint cannot be verified and is not deleted", checkpoint=str(path), reason=str(error))
        return self._verified[path]

    def _best(self, checkpoints: list[Checkpoint]) -> list[Checkpoint]:
        if self.keep_best < 1:
            return []
        sign = 1.0 if self.mode == "max" else -1.0
        scored = [checkpoint for checkpoint in checkpoints if checkpoint.score is not None]
        return sorted(scored, key=lambda each: (sign * (each.score or 0.0), each.step))[-self.keep_best :]

    def _discard(self, path: Path) -> None:
        """Delete a checkpoint after renaming it, so that its name never denotes an incomplete checkpoint."""
        temporary = self.folder / f".tmp-{path.name}-{os.getpid()}-gone"
        path.rename(temporary)
        self._verified.pop(path, None)
        remove_folder(temporary)

    def remove_unfinished(self) -> None:
        """Delete what a dead process had not finished writing, deleting or replacing."""
        names = _subfolders(self.folder)
        for name in (name for name in names if name.startswith(".tmp-")):
            remove_folder(self.folder / name, ignore_errors=True)
        for name in (name for name in names if name.startswith(OLD)):
            if self._verify(self.folder / name.removeprefix(OLD)) is not None:
                remove_folder(self.folder / name, ignore_errors=True)

    def _restore_replaced(self) -> None:
        for old in (name for name in _subfolders(self.folder) if name.startswith(OLD)):
            put_back(self.folder / old.removeprefix(OLD))

    def _explain(self, step: int, error: OSError) -> str:
        try:
            free = f"{shutil.disk_usage(self.folder).free / 1e6:.1f} MB are free after removing the incomplete files"
        except OSError:
            free = "the free space is unknown"
        keep = " (checkpoint.keep_last and keep_best set how many are kept)" if error.errno in _FULL else ""
        paths = self.paths()
        left = f"the previous checkpoint, {paths[-1]}, is unchanged" if paths else "there is no earlier checkpoint"
        return (
            f"the checkpoint of step {step} could not be written to {self.folder}: {error.strerror or error} ({free}); "
            f"{left}. First {io_remedy(error)}{keep}, then continue with run.resume=auto"
        )


def list_checkpoints(folder: Path) -> list[Path]:
    """Return the folders of the checkpoints in `folder`, oldest first, unverified; nothing is modified.

    Raises:
        CheckpointError: the folder cannot be read.
    """
    numbers = [name for name in _subfolders(folder) if name.isascii() and name.isdecimal()]
    return [folder / name for name in sorted(numbers, key=int)]


def _subfolders(folder: Path) -> list[str]:
    """Return the names of the folders in `folder`; none if it does not exist."""
    try:
        with os.scandir(folder) as entries:
            return [entry.name for entry in entries if entry.is_dir()]
    except (FileNotFoundError, NotADirectoryError) as error:
        if folder.is_symlink():  # to a disk that is not mounted, for example
            raise unreadable(folder, error) from error
        return []
    except OSError as error:
        raise unreadable(folder, error) from error


def _remove(folder: Path) -> None:
    if folder.exists():
        shutil.rmtree(folder)


def save_beside(save: Callable[[Path], None], place: Path) -> None:
    """Call `save(folder)` on a temporary folder beside `place`, and rename it to `place` once it is complete.

    Raises:
        CheckpointError: it could not be written; an earlier folder at `place` is unchanged.
    """
    beside = place.with_name(f".tmp-{place.name}")
    try:
        put_back(place)
        shutil.rmtree(beside, ignore_errors=True)
        save(beside)
        put_in_place(beside, place)
    except Exception as error:
        shutil.rmtree(beside, ignore_errors=True)
        failure = io_failure(error)
        if failure is None:
            raise
        raise CheckpointError(f"{place}: the model could not be written: {failure}; {io_remedy(failure)}") from error
