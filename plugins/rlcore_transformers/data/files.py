"""Files of rows: which there are, by pattern or in a folder, how they are compressed, and how each type is read."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from io import TextIOWrapper
from pathlib import Path
from typing import Any, BinaryIO, TextIO, cast

from rlcore.config.paths import existing_path
from rlcore.config.plain import from_json
from rlcore.errors import DataError
from rlcore.safe_text import shorten
from rlcore_transformers.data.data_sets import guard_datasets

COMPRESSED = (".gz", ".zst")
"""Endings of compressed files, after that of their type."""


def type_of(name: str | Path) -> str:
    """Return the ending of a file in small letters, without that of a compression: `.jsonl` of `a.jsonl.gz`."""
    path = Path(name)
    return Path(path.stem).suffix.lower() if path.suffix.lower() in COMPRESSED else path.suffix.lower()


def is_pattern(name: str) -> bool:
    """Return whether a name with `*` or `?` stands for several files: it names a folder, or ends like a data file."""
    ends_like_file = type_of(name) in READERS or Path(name).suffix.lower() in COMPRESSED
    return bool({"*", "?"} & set(name)) and ("/" in name or ends_like_file) and existing_path(name) is None


def matching_files(pattern: str, what: str) -> list[Path]:
    """Return the files that match a pattern with `*`, `?` or `**`, in the order of their names.

    Raises:
        DataError: there are none.
    """
    path = Path(pattern).expanduser()
    root = Path(path.anchor) if path.anchor else Path()
    found = sorted(each for each in root.glob(str(path.relative_to(root))) if each.is_file())
    if not found:
        raise DataError(f"{what} = {shorten(pattern, 200)}: no file matches this pattern: {root.absolute() / path}")
    return found


def files_in(folder: Path, what: str) -> list[Path]:
    """Return the data files of a folder, in the order of their names; those of its folders are not read.

    Raises:
        DataError: there are none.
    """
    found = sorted(each for each in folder.iterdir() if each.is_file() and type_of(each) in READERS)
    if not found:
        raise DataError(
            f"{what} = {str(folder)!r}: this folder has no saved data set, and no file of {', '.join(READERS)}; write "
            f"a pattern to read the folders in it, such as {folder}/**/*.jsonl"
        )
    return found


def read_file(path: Path, what: str) -> list[Any]:
    """Return the rows of a file.

    Raises:
        DataError: it is of an unknown type, or cannot be read.
    """
    reader = READERS.get(type_of(path))
    if reader is None:
        raise DataError(f"{what} = {str(path)!r}: unknown file type '{path.suffix}'; known are {', '.join(READERS)}")
    try:
        return reader(path, what)
    except UnicodeDecodeError as error:
        line = _first_undecodable(path)
        raise DataError(f"{what}: {path}, line {line}: is not UTF-8 text ({error.reason}); convert it first") from error
    except (OSError, EOFError) as error:
        reason = getattr(error, "strerror", None) or error
        raise DataError(f"{what} = {str(path)!r}: cannot be read: {reason}") from error


def check_compression(path: Path, what: str) -> None:
    """Check that the library with which `datasets` reads a compressed file is installed.

    Raises:
        DataError: it is not.
    """
    if path.suffix.lower() == ".zst":
        try:
            import zstandard  # noqa: F401
        except ImportError:
            raise DataError(
                f"{what} = {str(path)!r}: files of this type need the package zstandard; install it, as with pip "
                "install 'rlcore-transformers[zstd]'"
            ) from None


def _open_binary(path: Path) -> BinaryIO:
    if path.suffix.lower() == ".gz":
        return cast("BinaryIO", gzip.open(path, "rb"))
    if path.suffix.lower() == ".zst":
        import pyarrow as pa  # whose reader, unlike that of zstandard, raises where a file is cut off

        return cast("BinaryIO", pa.input_stream(str(path), compression="zstd"))
    return path.open("rb")


def _open_text(path: Path) -> TextIO:
    return TextIOWrapper(_open_binary(path), encoding="utf-8-sig")


def _first_undecodable(path: Path) -> int:
    """Return the number of the first line that is not UTF-8 text; 0 if there is none."""
    with _open_binary(path) as lines:
        for number, line in enumerate(lines, 1):
            try:
                line.decode("utf-8-sig")
            except UnicodeDecodeError:
                return number
    return 0


def _read_lines(path: Path, what: str) -> list[Any]:
    del what  # any text is valid
    with _open_text(path) as lines:
        return [line.rstrip("\n") for line in lines if line.strip()]


def _read_json_lines(path: Path, what: str) -> list[Any]:
    with _open_text(path) as lines:
        return [_parse(line, f"{what}: {path}, line {number}") for number, line in enumerate(lines, 1) if line.strip()]


def _read_json(path: Path, what: str) -> list[Any]:
    with _open_text(path) as opened:
        text = opened.read()
    if not text.lstrip().startswith("["):
        return _read_json_lines(path, what)
    rows: list[Any] = _parse(text, f"{what}: {path}")
    return rows


def _read_table(path: Path, what: str) -> list[Any]:
    check_compression(path, what)
    if path.suffix.lower() in COMPRESSED:
        with _open_binary(path) as opened:  # a file that is cut off would be read up to there
            while opened.read(2**20):
                pass
    kind = type_of(path)
    read, how = ("from_parquet", {}) if kind == ".parquet" else ("from_csv", {"sep": "\t"} if kind == ".tsv" else {})
    loaded = guard_datasets(lambda library: getattr(library.Dataset, read)(str(path), **how), str(path), what)
    return list(loaded.with_format(None))


READERS: dict[str, Callable[[Path, str], list[Any]]] = {
    ".jsonl": _read_json_lines,
    ".json": _read_json,
    ".csv": _read_table,
    ".tsv": _read_table,
    ".parquet": _read_table,
    ".txt": _read_lines,
}
"""What reads a file, by the ending of its type."""


def _parse(text: str, where: str) -> Any:
    try:
        return from_json(text)
    except ValueError as error:
        raise DataError(f"{where}: cannot be read as JSON: {error}. The text begins {text[:40]!r}") from error
