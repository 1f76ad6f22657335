"""Locked folders, one per store, and the removal of folders of ended processes."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from pathlib import Path

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
