"""The lock on a run's folder: one process writes to a run at a time."""

from __future__ import annotations

import errno
import json
import os
import socket
from contextlib import suppress
from datetime import datetime
from pathlib import Path

from filelock import FileLock, Timeout

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
