"""Load rows from lists, data sets, files, the hub, or a user's function.

The source is never modified, and rows are returned unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from rlcore.components import describe_error
from rlcore.config.paths import existing_path
from rlcore.config.plain import from_json
from rlcore.data.user_code import list_names, load_reference
from rlcore.errors import DataError
from rlcore.safe_text import shorten
from rlcore_transformers.data.data_sets import guard_datasets, is_instance, is_stream, parse_hub_name, refuse_stream

FORMS = (
    "a list of rows or of files, a datasets.Dataset, the path of a .jsonl, .json, .csv, .parquet or .txt file, "
    "'module:function', or a hub data set 'org/name[[:subset]:split]'"
)


SPLITS_FILE = "dataset_dict.json"
"""File of a saved data set that has splits."""
ROWS_FILE = "dataset_info.json"
"""File of a saved data set, or of each of its splits."""


def load_source(source: Any, what: str = "prompts") -> list[Any]:
    """Load any source of rows into a list; the source is not modified.

    A string (or path) is, in this order: an existing file; the folder of a saved data set, `folder` or `folder:split`;
    a hub data set if it contains a slash (`org/name`, `org/name:split` or `org/name:subset:split`); or
    `module:function`, which is called without arguments and may return any other source. The split defaults to `train`.
    A list of file names (`file_names`) has the rows of all of these files, in their order.

    Args:
        source: a list, tuple or other finite iterable, a `datasets.Dataset`, a path, a reference, or a hub id.
        what: the option that holds the source, for errors.

    Raises:
        DataError: the source does not exist, or cannot be read as rows.
    """
    if isinstance(source, (str, Path)):
        return _load_named(str(source), what)
    if isinstance(source, Mapping):
        kind = type(source).__name__
        hint = f"; name a split, as in source[{next(iter(source))!r}]" if kind == "DatasetDict" else ""
        raise DataError(
            f"{what}: got a {kind} with keys {list_names(source)}, but rows are needed{hint or f': {FORMS}'}"
        )
    if is_instance(source, "datasets", "Dataset"):
        return list(source.with_format(None))
    if is_stream(source):
        refuse_stream(what, source)
    if is_instance(source, "pandas", "DataFrame"):
        return list(source.to_dict("records"))
    if (names := file_names(source, what)) is not None:
        return [row for i, name in enumerate(names) for row in _load_named(name, f"{what}[{i}]")]
    if isinstance(source, Iterable) and not isinstance(source, (bytes, bytearray)):
        try:
            return list(source)
        except (Exception, SystemExit) as error:  # a user's generator may raise anything
            raise DataError(f"{what}: reading the rows raised {describe_error(error)}") from error
    raise DataError(f"{what}: cannot read rows from {shorten(source)} ({type(source).__name__}); pass {FORMS}")


def file_names(source: Any, what: str) -> list[str] | None:
    """Return the names if a source is a list of file names, and None if it is anything else, such as a list of texts.

    It is a list of file names if every entry has the ending of a data file, or is the path of an existing file or of
    the folder of a saved data set. A list of texts may contain some that end in a file name.

    Raises:
        DataError: some entries are file names and others are not.
    """
    if not isinstance(source, (list, tuple)) or not source or not all(isinstance(each, (str, Path)) for each in source):
        return None
    names = [str(each) for each in source]
    if all(_ends_like_data(name) for name in names) or all(map(_is_file, names)):
        return names
    found = [isinstance(each, Path) or _is_file_name(name) for each, name in zip(source, names, strict=True)]
    if not any(found):
        return None
    named, other = found.index(True), found.index(False)
    raise DataError(
        f"{what}[{named}] = {shorten(names[named], 80)}: names a file, and {what}[{other}] = "
        f"{shorten(names[other], 80)} does not. A list has either names of files ({', '.join(_READERS)}) or texts; "
        "write a text that looks like a file's name as a row, such as {prompt: ...} or {text: ...}"
    )


def _load_named(name: str, what: str) -> list[Any]:
    path = existing_path(name)
    if path is not None and path.is_dir():
        return _load_folder(path, "", name, what)
    if path is not None:
        return _read_file(path, what)
    folder, _, split = name.rpartition(":")
    if folder and (saved := existing_path(folder)) is not None and (saved / SPLITS_FILE).exists():
        return _load_folder(saved, split, name, what)
    if Path(name).suffix.lower() in _READERS:
        raise DataError(f"{what} = {shorten(name, 200)}: there is no such file: {Path(name).absolute()}")
    if "/" in name:
        repository, subset, split = parse_hub_name(name, what)
        loaded = guard_datasets(lambda library: library.load_dataset(repository, subset, split=split), name, what)
        return load_source(loaded, what)
    if ":" in name:
        return _call_reference(name, what)
    raise DataError(
        f"{what} = {shorten(name)}: is neither a file nor 'module:function' nor a hub data set 'org/name'. "
        f"Pass a single text in a list: [{shorten(name)}]"
    )


def _ends_like_data(name: str) -> bool:
    return name[-9:].lower().endswith(tuple(_READERS))


def _is_file_name(text: str) -> bool:
    return _ends_like_data(text) and (len(text.split()) == 1 or _is_file(text))


def _is_file(name: str) -> bool:
    path = existing_path(name)
    if path is None or path.is_file():
        return path is not None and bool(path.suffix)
    return any((path / name).exists() for name in (SPLITS_FILE, ROWS_FILE))


def _load_folder(folder: Path, split: str, name: str, what: str) -> list[Any]:
    """Load a data set that was saved by `save_to_disk`; of several splits `split`, by default `train`."""
    loaded = guard_datasets(lambda library: library.load_from_disk(str(folder)), name, what)
    if isinstance(loaded, Mapping):
        if (split or "train") not in loaded:
            raise DataError(
                f"{what} = {name!r}: there is no split {split or 'train'!r}, only {list_names(loaded)}; name one, as "
                f"in {folder}:{next(iter(loaded), 'test')}"
            )
        loaded = loaded[split or "train"]
    return load_source(loaded, what)


def _call_reference(name: str, what: str) -> list[Any]:
    target = load_reference(name, what)
    if callable(target):
        try:
            target = target()
        except (Exception, SystemExit) as error:  # a user's function may raise anything
            raise DataError(f"{what} = {name!r}: the function raised {describe_error(error)}") from error
    if target == name:
        raise DataError(f"{what} = {name!r}: the function returned its own name; return rows")
    return load_source(target, what)


def _read_file(path: Path, what: str) -> list[Any]:
    reader = _READERS.get(path.suffix.lower())
    if reader is None:
        raise DataError(f"{what} = {str(path)!r}: unknown file type '{path.suffix}'; known are {', '.join(_READERS)}")
    try:
        return reader(path, what)
    except UnicodeDecodeError as error:
        line = _first_undecodable(path)
        raise DataError(f"{what}: {path}, line {line}: is not UTF-8 text ({error.reason}); convert it first") from error
    except OSError as error:
        raise DataError(f"{what} = {str(path)!r}: cannot be read: {error.strerror or error}") from error


def _first_undecodable(path: Path) -> int:
    """Return the number of the first line that is not UTF-8 text; 0 if there is none."""
    with path.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            try:
                line.decode("utf-8-sig")
            except UnicodeDecodeError:
                return number
    return 0


def _read_lines(path: Path, what: str) -> list[Any]:
    del what  # any text is valid
    with path.open(encoding="utf-8-sig") as lines:
        return [line.rstrip("\n") for line in lines if line.strip()]


def _read_json_lines(path: Path, what: str) -> list[Any]:
    with path.open(encoding="utf-8-sig") as lines:
        return [_parse(line, f"{what}: {path}, line {number}") for number, line in enumerate(lines, 1) if line.strip()]


def _read_json(path: Path, what: str) -> list[Any]:
    text = path.read_text(encoding="utf-8-sig")
    if not text.lstrip().startswith("["):
        return _read_json_lines(path, what)
    rows: list[Any] = _parse(text, f"{what}: {path}")
    return rows


def _read_table(path: Path, what: str) -> list[Any]:
    read = "from_csv" if path.suffix.lower() == ".csv" else "from_parquet"
    loaded = guard_datasets(lambda library: getattr(library.Dataset, read)(str(path)), str(path), what)
    return load_source(loaded, what)


_READERS: dict[str, Callable[[Path, str], list[Any]]] = {
    ".jsonl": _read_json_lines,
    ".json": _read_json,
    ".csv": _read_table,
    ".parquet": _read_table,
    ".txt": _read_lines,
}


def _parse(text: str, where: str) -> Any:
    try:
        return from_json(text)
    except ValueError as error:
        raise DataError(f"{where}: cannot be read as JSON: {error}. The text begins {text[:40]!r}") from error
