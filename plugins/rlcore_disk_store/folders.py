"""Give each store a folder of its own, and remove what it or a dead process left there."""

from __future__ import annotations

import fcntl
import os
import shutil
import tempfile
from pathlib import Path

PREFIX = "rlcore-rollouts-"
LOCK = ".lock"
TAKEN = "taken"
"""Subfolder of what was taken and is kept; it alone outlives its process."""


def claim_folder(parent: Path) -> tuple[Path, int]:
    """Make a folder in `parent` that no other store uses; also remove what dead processes left beside it.

    Returns:
        The folder, and the descriptor of its lock: the folder counts as in use while this process lives.
    """
    parent.mkdir(parents=True, exist_ok=True)
    for folder in parent.glob(f"{PREFIX}*"):
        _remove_if_left(folder)
    # It gets the name that others look for only when it is locked.
    new = Path(tempfile.mkdtemp(prefix=f".new-rank{os.environ.get('RANK', '0')}-", dir=parent))
    lock = os.open(new / LOCK, os.O_CREAT | os.O_RDWR, 0o600)
    fcntl.flock(lock, fcntl.LOCK_EX)
    folder = new.with_name(PREFIX + new.name.removeprefix(".new-"))
    new.rename(folder)
    return folder, lock


def release_folder(folder: Path, lock: int, pid: int) -> None:
    """Remove a folder at its owner's end, but for what was to be kept; a forked child removes nothing."""
    if os.getpid() == pid:
        _remove(folder)
        os.close(lock)


def _remove_if_left(folder: Path) -> None:
    try:
        lock = os.open(folder / LOCK, os.O_RDWR)
    except OSError:  # another user's, or only what was kept is left in it
        return
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:  # its process lives
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
