"""Put files and folders in place so that a crash at any moment leaves the earlier one or the new one, complete.

A run that overwrites another one is built in the folder of that run, which contains meanwhile

    .lock        locked by the one process that writes to the run
    .aside/      contents on their way into .replaced/ or back; nothing is deleted while this folder exists
    .replaced/   all previous contents; everything beside it belongs to the new run, which is not built yet
    .discarded/  all previous contents, being deleted, because the new run is built

One rename leads from each state to the next, and config.yaml, which marks a folder as a run, leaves a folder last and
enters it first. So `recover` knows after a crash at any point which of the two runs is complete.
"""

from __future__ import annotations

import os
import shutil
from contextlib import nullcontext, suppress
from pathlib import Path

CONFIG, LOCK, OWNER = "config.yaml", ".lock", ".lock-owner"
ASIDE, REPLACED, DISCARDED = ".aside", ".replaced", ".discarded"
OLD = ".old-"
"""Prefix of the name of a folder while another one takes its place."""


def put_in_place(temporary: Path, place: Path) -> None:
    """Sync a complete folder and rename it to `place`; a folder there is replaced, and deleted after that.

    Raises:
        OSError: a folder that was at `place` is there again.
    """
    share_permissions(temporary)
    sync_folder(temporary)
    old = _old(place)
    sync(place.parent.parent)
    if place.exists():
        if old.exists():
            remove_folder(old)
        place.rename(old)
    try:
        temporary.rename(place)
        sync(place.parent)
    except OSError:
        if place.exists():
            place.rename(temporary)
        put_back(place)
        raise
    remove_folder(old, ignore_errors=True)


def remove_folder(folder: Path, *, ignore_errors: bool = False) -> None:
    """Delete a folder; of a link to a folder, only the link.

    Raises:
        OSError: it cannot be deleted, unless `ignore_errors` is set.
    """
    if folder.is_symlink():
        with suppress(OSError) if ignore_errors else nullcontext():
            folder.unlink()
    else:
        shutil.rmtree(folder, ignore_errors=ignore_errors)


def put_back(place: Path) -> None:
    """Rename the folder that was being replaced at `place` back, if the process died before the new one was there."""
    if _old(place).exists() and not place.exists():
        _old(place).rename(place)
        sync(place.parent)


def _old(place: Path) -> Path:
    return place.with_name(f"{OLD}{place.name}")


def share_permissions(folder: Path) -> None:
    """Give the files in `folder` the permissions of the folder itself, which follow the umask.

    Libraries write some files, such as those of safetensors, for their owner only.
    """
    mode = folder.stat().st_mode & 0o666
    for path in folder.rglob("*"):
        if path.is_file() and path.stat().st_mode & 0o666 != mode:
            path.chmod(mode)


def sync_folder(folder: Path) -> None:
    """Sync everything in `folder` to disk: all files, then all folders, the innermost first."""
    paths = sorted(folder.rglob("*"), key=lambda path: len(path.parts), reverse=True)
    for path in [p for p in paths if p.is_file()] + [p for p in paths if p.is_dir()] + [folder]:
        sync(path)


def sync(path: Path) -> None:
    """Sync a file's contents, or a folder's entries, to disk."""
    if path.is_dir() and os.name == "nt":  # Windows cannot open folders
        return
    # fsync on Windows needs a file opened for writing.
    handle = os.open(path, os.O_RDWR if os.name == "nt" else os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


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
    """Return the files and folders of a run's folder, config.yaml last, without the lock and what is set aside."""
    others = {LOCK, OWNER, ASIDE, REPLACED, DISCARDED}
    children = [child for child in folder.iterdir() if child.name not in others]
    return sorted(children, key=lambda child: child.name == CONFIG)
