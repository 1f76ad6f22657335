"""The lock on a run's folder, and its previous contents while a run that overwrites them is built in it.

    .lock        locked by the one process that writes to the run
    .aside/      contents on their way into .replaced/ or back; nothing is deleted while this folder exists
    .replaced/   all previous contents; everything beside it belongs to the new run, which is not built yet
    .discarded/  all previous contents, being deleted, because the new run is built

One rename leads from each state to the next, and config.yaml, which marks a folder as a run, leaves a folder last and
enters it first. So `recover` knows after a crash at any point which of the two runs is complete.
"""

from __future__ import annotations

import errno
import json
import os
import shutil
import socket
from contextlib import suppress
from datetime import datetime
from pathlib import Path

from filelock import FileLock, Timeout

from rlcore.checkpoints.durability import sync
from rlcore.config.plain import from_json
from rlcore.errors import RunInUse
from rlcore.logging import get_logger

LOCK, OWNER = ".lock", ".lock-owner"
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
        self._lock = FileLock(place / LOCK, timeout=0, thread_local=False)
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


def is_locked(folder: Path) -> bool:
    """Return whether a process writes to a run; False if that cannot be told, as in a folder that is read-only."""
    file = folder / LOCK
    if not file.is_file():
        return False
    lock = FileLock(file.resolve(), timeout=0, thread_local=False)
    try:
        lock.acquire()
    except Timeout:
        return True
    except OSError:
        return False
    lock.release()
    return False


def _read_owner(file: Path) -> str:
    try:
        owner = from_json(file.read_text(encoding="utf-8"))
        return f"process {owner['pid']} on host {owner['host']}, since {owner['since']}"
    except (OSError, ValueError, KeyError, TypeError):
        return "another process"


CONFIG = "config.yaml"
ASIDE, REPLACED, DISCARDED = ".aside", ".replaced", ".discarded"
_NO_CONTENTS = {LOCK, OWNER, ASIDE, REPLACED, DISCARDED}


def set_aside(folder: Path) -> None:
    """Move the contents of `folder` to its subfolder `.replaced`."""
    aside = folder / ASIDE
    aside.mkdir()
    for child in contents(folder):
        child.rename(aside / child.name)
    sync(aside)
    aside.rename(folder / REPLACED)
    sync(folder)


def discard(folder: Path) -> None:
    """Delete the contents that were set aside; the new ones are complete.

    The rename is synced with the next checkpoint, before which nothing of the new run has to outlast a power failure.
    """
    if (folder / REPLACED).is_dir():
        (folder / REPLACED).rename(folder / DISCARDED)
        shutil.rmtree(folder / DISCARDED, ignore_errors=True)


def recover(folder: Path) -> bool:
    """Finish the deletion, or undo the replacement, that a process has begun and not finished.

    Returns:
        Whether previous contents were put back.
    """
    if (folder / DISCARDED).is_dir():
        shutil.rmtree(folder / DISCARDED)
    if (folder / REPLACED).is_dir():
        clear(folder)
        (folder / REPLACED).rename(folder / ASIDE)
    aside = folder / ASIDE
    if not aside.is_dir():
        return False
    for child in reversed(contents(aside)):
        child.rename(folder / child.name)
    sync(folder)
    aside.rmdir()
    return True


def clear(folder: Path) -> None:
    """Delete the contents of a run's folder, but neither its lock nor contents that were set aside."""
    for child in contents(folder):
        if child.is_dir() and not child.is_symlink():
            shutil.rmtree(child)
        else:
            child.unlink()


def contents(folder: Path) -> list[Path]:
    """Return the files and folders of a run's folder, config.yaml last, without those of this module and the lock."""
    children = [child for child in folder.iterdir() if child.name not in _NO_CONTENTS]
    return sorted(children, key=lambda child: child.name == CONFIG)
