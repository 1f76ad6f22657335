"""Claim the folder of a run, and undo all changes to it if the run cannot be built."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import attrs

from rlcore.checkpoints.checkpoint import Checkpoint, Checkpoints
from rlcore.checkpoints.manifest import read_manifest, verify_files
from rlcore.checkpoints.run_folder import AUTO, NEVER, RunDir, is_run, open_folder, resumes
from rlcore.checkpoints.run_lock import RunLock, clear, contents, discard, recover, set_aside
from rlcore.errors import CheckpointError, ConfigError, DamagedCheckpoint, RLCoreError
from rlcore.logging import get_logger
from rlcore.ranks import Ranks
from rlcore.settings import RunConfig, TrainConfig, to_record


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
        ConfigError: the folder cannot be created.
    """
    place = _Place(config.run, trainer)
    found: Claim | None = None

    def take() -> Claim:
        try:
            return _claim(place, config.run)
        except (OSError, ValueError) as error:  # a ValueError: no file can have this name
            if isinstance(error, RLCoreError):
                raise
            raise ConfigError(
                f"run.root = {config.run.root!r}: the run's folder cannot be created or read: {error}"
            ) from error

    try:
        found = ranks.on_main(take)
        if ranks.is_main and not found.is_continued:
            RunDir(found.path).write_config(to_record(config), plugins, notes)
        yield attrs.evolve(found, lock=place.lock)
        if ranks.is_main:
            discard(found.path)
            RunDir(found.path).remove_unfinished()
            if found.is_continued:
                RunDir(found.path).write_config(to_record(config), plugins, notes)
    except GeneratorExit:  # dropped without being closed
        raise
    except BaseException:
        place.undo(is_new=found is not None and not found.is_continued)
        raise


class _Place:
    """The run's folder on rank 0: opened, locked, and left as it was found if the run cannot be built."""

    def __init__(self, run: RunConfig, trainer: str) -> None:
        self.run, self.trainer = run, trainer
        self.lock: RunLock | None = None
        self.existed = False

    def open(self) -> tuple[Path, bool]:
        """Open and lock the folder, and set a run aside that is to be overwritten.

        Returns:
            The folder, and whether it contains the run to resume.
        """
        run = self.run
        self.existed = run.name is not None and (Path(run.root) / run.name).exists()
        folder = open_folder(Path(run.root), run.name, self.trainer)
        if is_run(folder):  # an error about the options comes before any change to the folder
            resumes(folder, run.resume, overwrite=run.overwrite)
        self.lock = RunLock(folder)
        if recover(folder):
            get_logger("resume").warning("an overwrite that was interrupted is undone", run=str(folder))
        if not is_run(folder):
            return folder, False
        if resumes(folder, run.resume, overwrite=run.overwrite):
            return folder, True
        set_aside(folder)
        return folder, False

    def undo(self, *, is_new: bool) -> None:
        """Restore the folder to its state before `open`, and release it.

        Args:
            is_new: whether the folder's present contents belong to the run that could not be built.
        """
        if self.lock is None:
            return
        folder = self.lock.folder
        try:
            if not recover(folder) and is_new:
                clear(folder)
            if not contents(folder):
                self.lock.remove()
                if not self.existed:
                    folder.rmdir()
        finally:
            self.lock.release()


def _claim(place: _Place, run: RunConfig) -> Claim:
    if run.name is None and run.resume == AUTO:
        raise ConfigError("run.resume = 'auto': needs run.name, the run to continue")
    checkpoint = None if run.resume in (NEVER, AUTO) else Checkpoints.open(Path(run.resume))
    folder, is_continued = place.open()
    if checkpoint is None and is_continued:
        checkpoint = _newest(RunDir(folder).checkpoints)
        if checkpoint is None:
            get_logger("resume").warning("the run has no checkpoint and starts at step 0", run=str(folder))
    start = None if checkpoint is None else _verified_start(checkpoint)
    return Claim(folder, is_continued, checkpoint, start)


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
