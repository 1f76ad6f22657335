"""Claim the folder of a run for one process, and undo all changes to it if the run cannot be built."""

from __future__ import annotations

import errno
import json
import os
import socket
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from datetime import datetime
from pathlib import Path

import attrs
from filelock import FileLock, Timeout

from rlcore.checkpoints.checkpoint import Checkpoint, Checkpoints
from rlcore.checkpoints.manifest import read_manifest, verify_files
from rlcore.checkpoints.run_folder import (
    AUTO,
    LOCK,
    NEVER,
    OWNER,
    RunDir,
    clear,
    contents,
    discard,
    is_run,
    open_folder,
    recover,
    resumes,
    set_aside,
)
from rlcore.config.options import from_json
from rlcore.config.yaml_files import path_named
from rlcore.errors import CheckpointError, ConfigError, DamagedCheckpoint, RLCoreError, RunInUse, io_remedy
from rlcore.logging import get_logger
from rlcore.ranks import Ranks
from rlcore.settings import RunConfig, TrainConfig, to_record

log = get_logger("resume")
_UNSUPPORTED = {errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP}


class RunLock:
    """The exclusive right of this process to write to a run's folder; the system releases it when the process ends.

    `.lock` is locked by the operating system, also over NFS. `.lock-owner` describes the process for the error that
    others get; it is a file of its own because not every system lets others read a locked file.

    Args:
        folder: the run's folder.

    Raises:
        RunInUse: another process, or another run in this process, has the lock.
        OSError: the folder cannot be written to.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        place = folder.resolve()  # the working directory may change before the release
        self._files = (place / OWNER, place / LOCK)
        self._lock = FileLock(place / LOCK, timeout=0.2, thread_local=False)  # `is_locked` has it for an instant
        try:
            self._lock.acquire()
        except Timeout:
            raise RunInUse(
                f"{folder} is in use by {_read_owner(place / OWNER)}: wait until that process ends, stop it, or pass "
                "another run.name"
            ) from None
        except OSError as error:
            if error.errno not in _UNSUPPORTED:
                raise
            get_logger("checkpoints").warning(
                "the file system has no locks, so that a second process in this run would not be noticed",
                run=str(folder), error=str(error),
            )  # fmt: skip
        owner = {
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "since": datetime.now().astimezone().isoformat(sep=" ", timespec="seconds"),
        }
        with suppress(OSError):  # such as a full disk, which is an error where the run's own files are written
            (place / OWNER).write_text(json.dumps(owner) + "\n", encoding="utf-8")

    def release(self) -> None:
        """Let other processes use the run. The locked file stays: deleting it would split those who wait for it."""
        if self._lock.is_locked:
            with suppress(OSError):
                self._files[0].unlink()
        self._lock.release()

    def remove(self) -> None:
        """Delete the files of the lock, because the folder is left without a run, and release it."""
        for file in self._files:
            with suppress(OSError):
                file.unlink()
        self._lock.release()


def _read_owner(file: Path) -> str:
    try:
        owner = from_json(file.read_text(encoding="utf-8"))
        return f"process {owner['pid']} on host {owner['host']}, since {owner['since']}"
    except (OSError, ValueError, KeyError, TypeError):
        return "another process"


@attrs.frozen
class Claim:
    """The folder of a run and the checkpoint to resume from.

    Attributes:
        path: the run's folder.
        is_continued: whether the folder already contained this run.
        checkpoint: the checkpoint to resume from; None for a new run.
        start: folder of the model before training, if the resumed run saved it.
        lock: keeps other processes from writing to the folder until it is released; on rank 0 only.
    """

    path: Path
    is_continued: bool
    checkpoint: Checkpoint | None
    start: Path | None
    lock: RunLock | None = attrs.field(default=None, eq=False, repr=False)


@contextmanager
def claim(
    config: TrainConfig, ranks: Ranks, plugins: dict[str, str], trainer: str, notes: Sequence[str] = ()
) -> Iterator[Claim]:
    """Create or find the run's folder on rank 0 and broadcast it to all ranks; undo the changes if the block raises.

    The caller releases the lock of the claim at the end of the run. Comments in config.yaml name the plugins, and
    `notes` are among them.

    Raises:
        RunExists: the folder contains a run, and neither `run.resume` nor `run.overwrite` is set.
        RunInUse: another process is writing to the folder.
        CheckpointError: the checkpoint of `run.resume` is missing, damaged or unreadable, or config.yaml is unreadable.
        ConfigError: the folder cannot be created or written, such as on a full disk.
    """
    undo = ExitStack()
    own: Claim | None = None

    def take() -> Claim:
        nonlocal own
        own = _take(config.run, trainer, undo)
        return attrs.evolve(own, lock=None)

    try:
        found = ranks.on_main(take)
        if ranks.is_main and not found.is_continued:
            undo.callback(clear, found.path)
            _write(found.path, config, plugins, notes)
        yield own or found
        if ranks.is_main:
            discard(found.path)
            RunDir(found.path).remove_unfinished()
            if found.is_continued:
                _write(found.path, config, plugins, notes)
    except GeneratorExit:  # dropped without being closed
        raise
    except BaseException:
        undo.close()
        raise


def _take(run: RunConfig, trainer: str, undo: ExitStack) -> Claim:
    """Open and lock the folder of a run, set a run aside that is to be overwritten, and find the checkpoint to resume.

    Args:
        run: the section `run` of the configuration.
        trainer: begins the name of a folder without a given one.
        undo: receives what restores the folder and releases it.
    """
    if run.name is None and run.resume == AUTO:
        raise ConfigError("run.resume = 'auto': needs run.name, the run to continue")
    try:
        checkpoint = None if run.resume in (NEVER, AUTO) else Checkpoints.open(path_named(run.resume))
        root = path_named(run.root)
        is_old = run.name is not None and (root / run.name).exists()
        folder = open_folder(root, run.name, trainer)
        if is_run(folder):  # an error about the options comes before any change to the folder
            resumes(folder, run.resume, overwrite=run.overwrite)
        lock = RunLock(folder)
        undo.callback(lock.release)
        undo.callback(_leave, lock, is_old=is_old)
        undo.callback(recover, folder)
        if recover(folder):
            log.warning("an overwrite that was interrupted is undone", run=str(folder))
        is_continued = is_run(folder) and resumes(folder, run.resume, overwrite=run.overwrite)
        if is_continued and checkpoint is None and (checkpoint := _newest(RunDir(folder).checkpoints)) is None:
            log.warning("the run has no checkpoint and starts at step 0", run=str(folder))
        if not is_continued and is_run(folder):
            set_aside(folder)
        start = None if checkpoint is None else _verified_start(checkpoint)
        return Claim(folder, is_continued, checkpoint, start, lock)
    except (OSError, ValueError) as error:  # a ValueError: no file can have this name
        if isinstance(error, RLCoreError):
            raise
        raise ConfigError(f"run.root = {run.root!r}: the run's folder cannot be created or read: {error}") from error


def _write(folder: Path, config: TrainConfig, plugins: dict[str, str], notes: Sequence[str]) -> None:
    """Write the options of a run.

    Raises:
        ConfigError: the file cannot be written.
    """
    try:
        RunDir(folder).write_config(to_record(config), plugins, notes)
    except OSError as error:
        raise ConfigError(
            f"run.root = {config.run.root!r}: {RunDir(folder).config} cannot be written: {error.strerror or error}: "
            f"{io_remedy(error)}"
        ) from error


def _leave(lock: RunLock, *, is_old: bool) -> None:
    """Delete the lock of a folder without contents, and the folder unless it is older than the claim."""
    if not contents(lock.folder):
        lock.remove()
        if not is_old:
            lock.folder.rmdir()


def _newest(folder: Path) -> Checkpoint | None:
    """Return the newest checkpoint that is not damaged; None if there is no checkpoint at all.

    Raises:
        DamagedCheckpoint: all checkpoints are damaged.
        CheckpointError: a checkpoint cannot be read, so that it is not known to be damaged.
    """
    checkpoints = Checkpoints(folder)
    newest = checkpoints.newest_whole()
    if newest is None and (paths := checkpoints.paths()):
        raise DamagedCheckpoint(
            f"{folder}: all of its checkpoints are damaged ({', '.join(path.name for path in paths)}; see the warnings "
            "above), and nothing has been changed: restore one from a backup, or delete the run and start it again "
            "with run.resume=never run.overwrite=true"
        )
    return newest


def _verified_start(checkpoint: Checkpoint) -> Path | None:
    """Return the folder of the model before training after comparing it with its checksums; None if there is none.

    Raises:
        CheckpointError: it is missing, damaged, unreadable, or not the one with which the checkpoint was written.
    """
    own, start = RunDir(checkpoint.path).start, RunDir(checkpoint.path.parent.parent).start
    if own.is_dir():  # the checkpoint was exported
        start = own
    expected = checkpoint.manifest.get("start")
    if expected is None:
        return start if start.is_dir() else None
    try:
        manifest = read_manifest(start)
        verify_files(start, manifest["files"])
        if manifest["sha256"] != expected:
            raise DamagedCheckpoint(f"{start}: is another model than when the checkpoint was written")
    except CheckpointError as error:
        raise type(error)(
            f"{error}. {checkpoint.path} needs it, because it is the model before training: restore it from a backup, "
            f"or start a new run from {checkpoint.path / 'model'}"
        ) from error
    return start
