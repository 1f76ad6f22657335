"""The previous contents of a run's folder while a run that overwrites them is built in the same folder.

    .aside/      contents on their way into .replaced/ or back; nothing is deleted while this folder exists
    .replaced/   all previous contents; everything beside it belongs to the new run, which is not built yet
    .discarded/  all previous contents, being deleted, because the new run is built

One rename leads from each state to the next, and config.yaml, which marks a folder as a run, leaves a folder last and
enters it first. So `recover` knows after a crash at any point which of the two runs is complete.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from rlcore.checkpoints.durability import sync
from rlcore.checkpoints.run_lock import LOCK, OWNER

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
