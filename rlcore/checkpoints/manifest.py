"""Manifest of a folder, such as a checkpoint: its metadata and a checksum of every file, to detect damage."""

from __future__ import annotations

import errno
import hashlib
import json
from collections.abc import Collection, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from rlcore.config.options import to_json, to_plain
from rlcore.errors import CheckpointError, DamagedCheckpoint

FILE_NAME = "manifest.json"
SCHEMA = 1
OWN_FIELDS = ("schema", "step", "created", "score", "bytes", "files", "sha256")
MISSING = (FileNotFoundError, NotADirectoryError, IsADirectoryError)
"""Errors that prove that a file is missing; all others leave open what it contains."""
READ_AS_WEIGHTS = (".safetensors", ".index.json", "adapter_config.json")
"""Ends of the names of files in which libraries find weights; some read every such file that they find."""
READ_BESIDE = (
    "config.json", "model_index.json", "tokenizer.json", "tokenizer.model", "special_tokens_map.json",
    "added_tokens.json", "vocab.json", "vocab.txt", "merges.txt", "chat_template.jinja", "chat_template.json", ".py",
)  # fmt: skip
"""Ends of the names of files from which libraries read the configuration of a model, its code and its tokenizer."""
READ = (*READ_AS_WEIGHTS, *READ_BESIDE)


def file_entry(path: Path) -> dict[str, Any]:
    """Return what a manifest says of a file: its size and SHA-256."""
    return {"sha256": _digest(path), "bytes": path.stat().st_size}


def write_manifest(
    folder: Path,
    *,
    step: int,
    score: float | None,
    further: Mapping[str, object],
    entries: Mapping[str, Mapping[str, object]] | None = None,
) -> dict[str, object]:
    """Write `manifest.json` with the size and SHA-256 of every file in `folder`, and a SHA-256 of its own contents.

    Args:
        folder: the folder.
        step: number of finished steps.
        score: the metric by which the best checkpoints are kept.
        further: further fields.
        entries: path in the folder → `file_entry` of files for which it is known.

    Returns:
        The contents of the manifest.

    Raises:
        CheckpointError: `further` contains a field of the manifest itself.
    """
    clashes = sorted(set(further) & set(OWN_FIELDS))
    if clashes:
        raise CheckpointError(f"a manifest has a field '{clashes[0]}' of its own: rename the further field")
    paths = [path for path in sorted(folder.rglob("*")) if path.is_file() and path != folder / FILE_NAME]
    known, names = entries or {}, {path: path.relative_to(folder).as_posix() for path in paths}
    files = {name: known[name] if name in known else file_entry(path) for path, name in names.items()}
    fields = {
        "schema": SCHEMA,
        "step": step,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "score": score,
        **further,
        "bytes": sum(path.stat().st_size for path in paths),
        "files": files,
    }
    contents: dict[str, object] = to_plain(fields)
    contents["sha256"] = _digest_of(contents)
    (folder / FILE_NAME).write_text(to_json(contents, indent=1) + "\n", encoding="utf-8")
    return contents


def read_manifest(folder: Path) -> dict[str, Any]:
    """Return the contents of the manifest of `folder` after verifying its own checksum.

    Raises:
        DamagedCheckpoint: the manifest is missing, malformed, or differs from its checksum.
        CheckpointError: the manifest cannot be read, or is of another schema.
    """
    path = folder / FILE_NAME
    try:
        contents = json.loads(path.read_text(encoding="utf-8"))
    except MISSING:
        raise DamagedCheckpoint(f"{folder}: has no {FILE_NAME}, so it is not a complete checkpoint") from None
    except OSError as error:
        raise unreadable(path, error) from error
    except (ValueError, RecursionError) as error:
        raise DamagedCheckpoint(f"{path}: is damaged: {error}") from error
    if not isinstance(contents, dict) or not isinstance(contents.get("sha256"), str):
        raise DamagedCheckpoint(f"{path}: is damaged: it has no checksum of itself")
    schema = contents.get("schema")
    if isinstance(schema, int) and schema != SCHEMA:  # first, because another schema may define another checksum
        raise CheckpointError(
            f"{path}: has schema {schema}, and this rlcore reads {SCHEMA}: use the rlcore that wrote it"
        )
    expected = contents["sha256"]
    seen = _digest_of({key: value for key, value in contents.items() if key != "sha256"})
    if seen != expected:
        raise DamagedCheckpoint(f"{path}: {_differs(expected, seen)}")
    if not _has_own_fields(contents):
        raise CheckpointError(f"{path}: lacks one of {', '.join(OWN_FIELDS)}: use the program that wrote it")
    return contents


def verify_files(folder: Path, files: Mapping[str, Mapping[str, object]]) -> None:
    """Compare every file in the manifest of `folder` with its size and checksum, and refuse further files of weights.

    Raises:
        DamagedCheckpoint: a file is missing or differs; the message names it.
        CheckpointError: a file cannot be read, or there is a file of weights that the manifest does not list.
    """
    _refuse_unlisted(folder, files, READ_AS_WEIGHTS)
    _verify(folder, files)


def _verify(folder: Path, files: Mapping[str, Mapping[str, Any]]) -> None:
    for name, entry in files.items():
        path = folder / name
        try:
            size = path.stat().st_size
            if size != entry["bytes"]:
                raise DamagedCheckpoint(f"{path}: is damaged: it has {size} bytes, and {entry['bytes']} were written")
            seen = _digest(path)
        except MISSING:
            raise DamagedCheckpoint(f"{path}: is missing") from None
        except OSError as error:
            raise unreadable(path, error) from error
        if seen != entry["sha256"]:
            raise DamagedCheckpoint(f"{path}: {_differs(entry['sha256'], seen)}")


def verify_model(folder: Path, ends: tuple[str, ...] | None = None) -> None:
    """Compare what is read of a model's folder with the manifest in it, or with that of the checkpoint it is part of.

    Args:
        folder: the folder.
        ends: ends of the names of the files that are read; by default weights, configuration and tokenizer.

    Raises:
        CheckpointError: such a file differs, is missing, or is not listed; nothing is raised without a manifest.
    """
    folder, ends = folder.absolute(), READ if ends is None else ends
    for place in (folder, folder.parent):
        if not _is_manifest(place / FILE_NAME):
            continue
        files = {place / name: entry for name, entry in read_manifest(place)["files"].items()}
        held = {path.relative_to(folder).as_posix(): entry for path, entry in files.items() if folder in path.parents}
        if held:
            _refuse_unlisted(folder, held, ends)
            try:
                _verify(folder, {name: entry for name, entry in held.items() if name.endswith(ends)})
            except DamagedCheckpoint as error:
                raise type(error)(f"{error}; if that is on purpose, delete {place / FILE_NAME}") from error
        return


def remove_weights(folder: Path) -> bool:
    """Delete weights, and what is read beside them, that the manifest in `folder` lists; return whether it has one."""
    if not _is_manifest(folder / FILE_NAME):
        return False
    for name in read_manifest(folder)["files"]:
        if name.endswith(READ):
            (folder / name).unlink(missing_ok=True)
    return True


def _is_manifest(path: Path) -> bool:
    """Return whether a file is a manifest of rlcore, perhaps a damaged one; other programs use the same name."""
    if not path.is_file():
        return False
    found = path.read_bytes()
    is_left = not found.strip(b"\0 \n") or found.startswith(b'{\n "schema"')  # after a crash: empty, zeros or cut off
    return is_left or all(field in found for field in (b'"sha256"', b'"files"', b'"created"'))


def _refuse_unlisted(folder: Path, files: Collection[str], ends: tuple[str, ...]) -> None:
    for path in sorted(folder.rglob("*")):
        name = path.relative_to(folder)
        is_hidden = any(part.startswith(".") for part in name.parts)
        if path.name.endswith(ends) and not is_hidden and name.as_posix() not in files and path.is_file():
            raise CheckpointError(
                f"{path}: is not among the files that {FILE_NAME} of this model or checkpoint lists, and would be read"
                f"{' as weights' if path.name.endswith(READ_AS_WEIGHTS) else ''}; a copy over an older folder leaves "
                "such files: move it away, or copy into a new folder"
            )


def unreadable(path: Path, error: OSError) -> CheckpointError:
    """Return the error for a file or folder that cannot be read now; this does not prove that it is damaged."""
    code = "" if error.errno is None else f" (errno {error.errno}, {errno.errorcode.get(error.errno, 'unknown')})"
    if isinstance(error, PermissionError):
        remedy = "resume as a user who may read it, or change its permissions"
    else:
        remedy = "check the disk or the network mount, and repeat the command"
    return CheckpointError(
        f"{path}: cannot be read: {error.strerror or error}{code}. It may be intact, so nothing has been changed: "
        f"{remedy}; run.resume=<folder of a checkpoint> resumes from another one"
    )


def _has_own_fields(contents: Mapping[str, object]) -> bool:
    step, score, files = (contents.get(name) for name in ("step", "score", "files"))
    return (
        contents.get("schema") == SCHEMA
        and isinstance(step, int)
        and (score is None or isinstance(score, int | float))
        and isinstance(files, dict)
        and all(
            isinstance(entry, dict) and isinstance(entry.get("bytes"), int) and isinstance(entry.get("sha256"), str)
            for entry in files.values()
        )
    )


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _digest_of(contents: Mapping[str, object]) -> str:
    return hashlib.sha256(to_json(contents).encode()).hexdigest()


def _differs(expected: str, seen: str) -> str:
    return f"is damaged: its checksum is {seen[:8]}, and {expected[:8]} was written"
