"""Manifest of a checkpoint: its metadata and a checksum of every file, to detect damage."""

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
    """Write `manifest.json` with the size and SHA-256 of every file in `folder`, and a SHA-256 of its own contents.

    Raises:
        CheckpointError: `further` contains a field of the manifest itself.
    """
    clashes = sorted(set(further) & set(OWN_FIELDS))
    if clashes:
        raise CheckpointError(f"a manifest has a field '{clashes[0]}' of its own: rename the further field")
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
    """Return the contents of the manifest of `folder` after verifying its own checksum.

    Raises:
        CheckpointError: the manifest is missing, damaged, or of another schema.
    """
    path = folder / FILE_NAME
    try:
        contents = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointError(f"{folder}: has no {FILE_NAME}, so it is not a complete checkpoint") from None
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
    """Compare every file in the manifest of `folder` with its size and checksum.

    Raises:
        CheckpointError: a file is missing or differs; the message names it.
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


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _digest_of(contents: Mapping[str, Any]) -> str:
    return hashlib.sha256(to_json(contents).encode()).hexdigest()


def _differs(expected: str, seen: str) -> str:
    return f"is damaged: its checksum is {seen[:8]}, and {expected[:8]} was written"
