"""Put files and folders in place so that a crash at any moment leaves the earlier one or the new one, complete."""

from __future__ import annotations

import os
import shutil
from contextlib import nullcontext, suppress
from pathlib import Path

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
