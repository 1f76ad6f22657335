"""Describe a folder by the checksums of its files, so that damage is noticed when it is read."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rlcore.config.plain import to_json, to_plain
from rlcore.errors import CheckpointError

FILE_NAME = "manifest.json"
SCHEMA = 1
OWN_FIELDS = ("schema", "step", "created", "score", "bytes", "files", "sha256")


def write_manifest(folder: Path, *, step: int, score: float | None, further: Mapping[str, Any]) -> None:
    """Write `manifest.json` with the size and SHA-256 of every file in `folder`, and one of its own contents.

    Raises:
        CheckpointError: `further` has a field whose name is taken.
    """
    taken = sorted(set(further) & set(OWN_FIELDS))
    if taken:
        raise CheckpointError(f"a manifest has a field '{taken[0]}' of its own: call the further one something else")
    paths = [path for path in sorted(folder.rglob("*")) if path.is_file() and path != folder / FILE_NAME]
    files = {
        path.relative_to(folder).as_posix(): {"sha256": _digest(path), "bytes": path.stat().st_size} for path in paths
    }
    contents = {
        "schema": SCHEMA,
        "step": step,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "score": score,
        **further,
        "bytes": sum(path.stat().st_size for path in paths),
        "files": files,
    }
    contents = to_plain(contents)
    contents["sha256"] = _digest_of(contents)
    (folder / FILE_NAME).write_text(to_json(contents, indent=1) + "\n", encoding="utf-8")


def read_manifest(folder: Path) -> dict[str, Any]:
    """Return what the manifest of `folder` says, once it is known to be whole itself.

    Raises:
        CheckpointError: it is missing, damaged, or of another schema.
    """
    path = folder / FILE_NAME
    try:
        contents = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointError(f"{folder}: has no {FILE_NAME}, so it is no whole checkpoint") from None
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path}: is damaged: {error}") from error
    if not isinstance(contents, dict) or not isinstance(contents.get("sha256"), str):
        raise CheckpointError(f"{path}: is damaged: it has no checksum of itself")
    expected = contents["sha256"]
    seen = _digest_of({key: value for key, value in contents.items() if key != "sha256"})
    if seen != expected:
        raise CheckpointError(f"{path}: {_differs(expected, seen)}")
    if contents["schema"] != SCHEMA:
        raise CheckpointError(
            f"{path}: has schema {contents['schema']}, and this rlcore reads {SCHEMA}: use the rlcore that wrote it"
        )
    return contents


def verify_files(folder: Path, files: Mapping[str, Mapping[str, Any]]) -> None:
    """Compare every file that the manifest of `folder` names with its size and checksum there.

    Raises:
        CheckpointError: one is missing or differs; the message names it.
    """
    for name, entry in files.items():
        path = folder / name
        try:
            size = path.stat().st_size
            if size != entry["bytes"]:
                raise CheckpointError(f"{path}: is damaged: it has {size} bytes, and {entry['bytes']} were written")
            seen = _digest(path)
        except FileNotFoundError:
            raise CheckpointError(f"{path}: is missing") from None
        except OSError as error:
            raise CheckpointError(f"{path}: cannot be read: {error}") from error
        if seen != entry["sha256"]:
            raise CheckpointError(f"{path}: {_differs(entry['sha256'], seen)}")


def sync_folder(folder: Path) -> None:
    """Make the disk hold everything in `folder`: each file, then each folder from the innermost outwards."""
    paths = sorted(folder.rglob("*"), key=lambda path: len(path.parts), reverse=True)
    for path in [p for p in paths if p.is_file()] + [p for p in paths if p.is_dir()] + [folder]:
        sync(path)


def sync(path: Path) -> None:
    """Make the disk hold a file's contents, or a folder's list of names."""
    if path.is_dir() and os.name == "nt":  # Windows opens no folders
        return
    # fsync on Windows needs a file opened for writing.
    handle = os.open(path, os.O_RDWR if os.name == "nt" else os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _digest_of(contents: Mapping[str, Any]) -> str:
    return hashlib.sha256(to_json(contents).encode()).hexdigest()


def _differs(expected: str, seen: str) -> str:
    return f"is damaged: its checksum is {seen[:8]}, and {expected[:8]} was written"
