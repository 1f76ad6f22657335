"""Files of rows: which there are, by pattern or in a folder, how they are compressed, and how each type is read.

Each type has one reader, which yields rows one by one, whether a file is read whole or streamed.

Also in this file: data sets of the `datasets` library, from the hub or in memory, and streams of it.
"""

from __future__ import annotations

import codecs
import csv
import gzip
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from io import TextIOWrapper
from pathlib import Path
from typing import Any, BinaryIO, NoReturn, TextIO, cast

from rlcore.config.options import from_json
from rlcore.config.yaml_files import existing_path
from rlcore.errors import DataError
from rlcore.logging import is_progress_bar_enabled
from rlcore.safe_text import shorten

BY_NAME = "Check the name (org/name:subset:split), or load it yourself and pass the datasets.Dataset"
DAMAGED = "The file is damaged, or of another type than its name has"
"""What to do about a data set that cannot be loaded: one with a name, and a file."""


def parse_hub_name(name: str, what: str) -> tuple[str, str | None, str]:
    """Return the data set, its subset and its split: `org/name`, `org/name:split` or `org/name:subset:split`."""
    repository, *parts = re.split(r":(?![^\[]*\])", name)  # a split may be sliced, as in train[:100]
    if len(parts) > 2:
        raise DataError(f"{what} = {name!r}: has {len(parts)} parts after the data set; write org/name:subset:split")
    subset, split = (None, *parts) if len(parts) == 1 else parts or (None, "")
    return repository, subset or None, split or "train"


def guard_datasets(load: Callable[[Any], object], name: str, what: str, *, advice: str = BY_NAME) -> Any:
    """Call `load` with the `datasets` library.

    Args:
        load: loads a data set.
        name: its name, for errors.
        what: the option that holds the source, for errors.
        advice: what to do if it cannot be loaded.

    Raises:
        DataError: the library cannot load the data set.
    """
    import datasets as library

    try:
        with _progress_bars():
            return load(library)
    except (OSError, ValueError, RuntimeError, library.exceptions.DatasetsError) as error:
        cause = error.__cause__ if isinstance(error, library.exceptions.DatasetGenerationError) else None
        found = cause or error  # "An error occurred while generating the dataset" hides what it is
        reason = " ".join(str(found).strip().splitlines()[:2])  # the second lists the subsets, for example
        raise DataError(
            f"{what} = {name!r}: the datasets library could not load it, {type(found).__name__}: {reason}. {advice}"
        ) from error


@contextmanager
def _progress_bars() -> Iterator[None]:
    """Disable the libraries' progress bars during the block if rlcore's progress bars are disabled."""
    import datasets
    from huggingface_hub import utils as hub

    libraries = () if is_progress_bar_enabled() else (datasets, hub)
    silenced = [library for library in libraries if not library.are_progress_bars_disabled()]
    for library in silenced:
        library.disable_progress_bars()
    try:
        yield
    finally:
        for library in silenced:
            library.enable_progress_bars()


def is_stream(source: object) -> bool:
    """Return whether a source is an iterable data set of the `datasets` library, which is read row by row."""
    return is_instance(source, "datasets", "IterableDataset")


def refuse_stream(what: str, source: object) -> NoReturn:
    """Raise the error of a stream that is to be read whole."""
    raise DataError(
        f"{what}: is a stream ({type(source).__name__}), but all rows are read before the first step; give a "
        "datasets.Dataset, or a part of the stream, list(rows.take(1000)), and leave data.streaming out. Only "
        "`samples` can be streamed, by trainers that allow it (docs/data.md)"
    )


def is_instance(value: object, module: str, name: str) -> bool:
    """Return whether a value is an instance of a class of a library, without importing the library."""
    loaded = sys.modules.get(module)
    return loaded is not None and isinstance(value, getattr(loaded, name))


COMPRESSED = (".gz", ".zst")
"""Endings of compressed files, after that of their type."""
SEPARATORS = {".csv": ",", ".tsv": "\t"}
"""What separates the cells of a line."""
LONGEST_CELL = 2**31 - 1
"""Most characters of a cell; Python's own limit, 131,072, is less than some texts have."""
_MARKS = {
    codecs.BOM_UTF32_LE: "UTF-32", codecs.BOM_UTF32_BE: "UTF-32", codecs.BOM_UTF16_LE: "UTF-16",
    codecs.BOM_UTF16_BE: "UTF-16",
}  # fmt: skip
"""Byte-order marks of other encodings than UTF-8; one of UTF-32 begins with one of UTF-16."""
_HEAD = 64
"""Bytes at the beginning of a file in which those of UTF-16 are looked for."""


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


def read_file(path: Path, what: str) -> list[object]:
    """Return the rows of a file.

    Raises:
        DataError: it is of an unknown type, or cannot be read.
    """
    return list(iterate_file(path, what))


def iterate_file(path: Path, what: str) -> Iterator[object]:
    """Yield the rows of a file; the cells of tables in text files are texts, and None if they are empty.

    Raises:
        DataError: it is of an unknown type, or a part of it cannot be read; the message names the line.
    """
    reader = READERS.get(type_of(path))
    if reader is None:
        raise DataError(f"{what} = {str(path)!r}: unknown file type '{path.suffix}'; known are {', '.join(READERS)}")
    try:
        yield from reader(path, what)
    except UnicodeDecodeError as error:
        raise DataError(f"{what}: {path}, {_describe_undecodable(path)}") from error
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


def _open_text(path: Path, what: str, *, newline: str | None = None) -> TextIO:
    """Open a text file of UTF-8.

    Raises:
        DataError: it begins like one of UTF-16 or UTF-32.
    """
    with _open_binary(path) as opened:
        head = opened.read(_HEAD)
    encoding = next((name for mark, name in _MARKS.items() if head.startswith(mark)), "UTF-16" if 0 in head else "")
    if encoding:
        raise DataError(
            f"{what}: {path}, line 1: is {encoding} text (it begins with the bytes {head[:4].hex(' ')}), and files are "
            f"read as UTF-8; save it as UTF-8, as with iconv -f {encoding} -t UTF-8"
        )
    return TextIOWrapper(_open_binary(path), encoding="utf-8-sig", newline=newline)


def _describe_undecodable(path: Path) -> str:
    """Return the number of the first line that is not UTF-8 text, and what is wrong with it."""
    with _open_binary(path) as lines:
        for number, line in enumerate(lines, 1):
            try:
                line.decode("utf-8-sig")
            except UnicodeDecodeError as error:
                before = error.object[: error.start][-20:].decode("utf-8", "replace")
                return (
                    f"line {number}: is not UTF-8 text ({error.reason}: byte 0x{error.object[error.start]:02x} after "
                    f"{before!r}); save the file as UTF-8, as with iconv -f CP1252 -t UTF-8 for one of Windows"
                )
    return "is not UTF-8 text; save it as UTF-8"


def _read_lines(path: Path, what: str) -> Iterator[str]:
    with _open_text(path, what) as lines:
        yield from (line.rstrip("\n") for line in lines if line.strip())


def _read_json_lines(path: Path, what: str) -> Iterator[object]:
    with _open_text(path, what) as lines:
        for number, line in enumerate(lines, 1):
            if line.strip():
                yield _parse(line, f"{what}: {path}, line {number}")


def _read_json(path: Path, what: str) -> Iterator[object]:
    with _open_text(path, what) as lines:
        first = next((line for line in lines if line.strip()), "")
    if not first.lstrip().startswith("["):
        yield from _read_json_lines(path, what)
        return
    with _open_text(path, what) as opened:
        text = opened.read()
    yield from _parse(text, f"{what}: {path}")


def _read_cells(path: Path, what: str) -> Iterator[dict[str, str | None]]:
    """Yield the rows of a table in a text file, whose first line has the names of its columns.

    Every cell is a text, as it is in the file: `007` has its zeros, and `None`, `NA` and `nan` are words. A cell
    without text is None.

    Raises:
        DataError: quotation marks do not match, a row has more or fewer cells than there are columns, or two columns
            have one name.
    """
    csv.field_size_limit(LONGEST_CELL)
    names: list[str] | None = None
    text: list[str] = []
    with _open_text(path, what, newline="") as lines:
        rows = csv.reader(_noting(lines, text), delimiter=SEPARATORS[type_of(path)], strict=True)
        while True:
            where = f"{what}: {path}, line {rows.line_num + 1}"
            text.clear()
            try:
                cells = next(rows, None)
            except csv.Error as error:
                raise DataError(
                    f"{where}: cannot be read as a table: {error}. A cell with quotes is itself in quotes, and each of "
                    f"its own is doubled. The line is {shorten(''.join(text), 100)}"
                ) from error
            if cells is None:
                return
            if not cells or (names is not None and len(cells) == 1 < len(names) and not cells[0].strip()):
                continue  # a line without text
            if names is None:
                names = _column_names(cells, where)
                continue
            if len(cells) != len(names):
                raise DataError(
                    f"{where}: has {len(cells)} cell(s), and there are {len(names)} columns ({', '.join(names)}); put "
                    f"a cell with a separator or a line break in quotes. The line is {shorten(cells, 100)}"
                )
            yield {name: cell or None for name, cell in zip(names, cells, strict=True)}


def _noting(lines: TextIO, text: list[str]) -> Iterator[str]:
    for line in lines:
        text.append(line)
        yield line


def _column_names(cells: Sequence[str], where: str) -> list[str]:
    """Return the names of columns; one without a name, such as the index that pandas writes, is named as by pandas."""
    names = [cell or f"Unnamed: {i}" for i, cell in enumerate(cells)]
    twice = next((name for name, count in Counter(names).items() if count > 1), None)
    if twice is not None:
        raise DataError(f"{where}: two columns have the name {twice!r}; rename one of them in the file")
    return names


def _read_parquet(path: Path, what: str) -> list[Any]:
    check_compression(path, what)
    if path.suffix.lower() in COMPRESSED:
        with _open_binary(path) as opened:  # a file that is cut off would be read up to there
            while opened.read(2**20):
                pass
    loaded = guard_datasets(lambda library: library.Dataset.from_parquet(str(path)), str(path), what, advice=DAMAGED)
    return list(loaded.with_format(None))


READERS: dict[str, Callable[[Path, str], Iterable[Any]]] = {
    ".jsonl": _read_json_lines,
    ".json": _read_json,
    ".csv": _read_cells,
    ".tsv": _read_cells,
    ".parquet": _read_parquet,
    ".txt": _read_lines,
}
"""What reads a file, by the ending of its type."""


def _parse(text: str, where: str) -> Any:
    try:
        return from_json(text)
    except ValueError as error:
        raise DataError(f"{where}: cannot be read as JSON: {error}. The text begins {text[:40]!r}") from error
