"""Load rows from lists, data sets, files, the hub, or a user's function.

The source is never modified, and rows are returned unchanged.

Also in this file: the sources of a mixture: a list of mappings with `path`, each with a weight, as in `{path:
a.jsonl, weight: 3}`.
"""

from __future__ import annotations

import difflib
import math
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import attrs
import numpy as np

from rlcore.components import describe_error
from rlcore.config.options import from_json
from rlcore.config.yaml_files import existing_path
from rlcore.data.user_code import list_names, load_reference
from rlcore.errors import DataError
from rlcore.logging import get_logger
from rlcore.safe_text import shorten
from rlcore_transformers.data.files import (
    READERS,
    files_in,
    guard_datasets,
    is_instance,
    is_pattern,
    is_stream,
    matching_files,
    parse_hub_name,
    read_file,
    refuse_stream,
    type_of,
)

KEYS = ("path", "name", "weight", "limit", "columns")
"""Keys of a source."""
LONGEST = 1000
"""A list of more entries is a mixture only if its first entry is a source."""


@attrs.frozen
class Source:
    """One source of a mixture.

    Attributes:
        path: a file, a data set, rows, or any other source.
        name: its name in metrics.
        weights: pairs of a step and the weight at it, linear in between; empty for a source that its size weighs.
        limit: rows that are read, the first ones; 0 for all.
        columns: columns to rename in this source, our name: theirs.
        what: its name in errors, such as `samples[1]`.
    """

    path: Any
    name: str
    weights: tuple[tuple[int, float], ...]
    limit: int
    columns: Mapping[str, str]
    what: str

    def weight_at(self, step: int) -> float:
        """Return the weight after a number of steps."""
        steps, weights = zip(*self.weights, strict=True)
        return float(np.interp(step, steps, weights))

    def expected_columns(self, columns: Mapping[str, str]) -> dict[str, str]:
        """Return the columns to rename, where `data.columns` is to find them: their name → the name it has for them."""
        return {theirs: columns.get(ours, ours) for ours, theirs in self.columns.items()}


def parse_mixture(given: object, what: str) -> list[Source] | None:
    """Return the sources of a mixture, or None if `given` is anything else, such as a list of rows.

    A mixture is a source, or a list with one: a mapping with `path` that has no keys but those of a source, misspelt
    ones included.

    Raises:
        DataError: a source has an unknown key or a value that cannot be used, two have the same name, some have a
            weight and others none, or evaluation rows have weights.
    """
    if isinstance(given, Mapping):
        entries: Sequence[object] = [given] if _is_source(given) else []
    else:
        entries = given if isinstance(given, (list, tuple)) else []
        if not any(map(_is_source, entries[:1] if len(entries) > LONGEST else entries)):
            return None
    if not entries:
        return None
    sources = [_parse(entry, f"{what}[{i}]") for i, entry in enumerate(entries)]
    counts = Counter(source.name for source in sources)
    if twice := next((source for source in sources if counts[source.name] > 1), None):
        raise DataError(f"{what}: two sources have the name {twice.name!r}; give each a name, as in {{name: web}}")
    weighed = [bool(source.weights) for source in sources]
    if any(weighed) and what.rpartition(".")[2].startswith("eval_"):
        raise DataError(
            f"{sources[weighed.index(True)].what}.weight: every evaluation takes all rows once, so a weight has no "
            "effect; leave it out, and set limit for fewer rows of a source"
        )
    if any(weighed) and not all(weighed):
        raise DataError(
            f"{sources[weighed.index(False)].what}: has no weight, and {sources[weighed.index(True)].what} has one; "
            "give all sources a weight, or none (then every row comes once in a pass)"
        )
    if all(weighed):
        for step in sorted({step for source in sources for step, _ in source.weights}):
            if not any(source.weight_at(step) for source in sources):
                raise DataError(f"{what}: all weights are 0 at step {step}; let one be positive")
    return sources


def _is_source(entry: object) -> bool:
    if not isinstance(entry, Mapping) or "path" not in entry:
        return False
    unknown = [str(key) for key in entry if key not in KEYS]
    return not unknown or "weight" in entry or "limit" in entry or all(map(_near, unknown))


def _near(key: str) -> str:
    return next(iter(difflib.get_close_matches(key, KEYS, n=1, cutoff=0.7)), "")


def _parse(entry: object, what: str) -> Source:
    if not isinstance(entry, Mapping) or "path" not in entry:
        raise DataError(
            f"{what} = {shorten(entry)}: is no source of a mixture, as others in the list are; write {{path: ...}}, "
            f"and optionally {', '.join(KEYS[1:])}"
        )
    for key in entry:
        if key not in KEYS:
            near = _near(str(key))
            hint = f"did you mean {near!r}? " if near else ""
            raise DataError(f"{what}: unknown key {key!r}; {hint}A source of a mixture has {', '.join(KEYS)}")
    path, limit, columns = entry["path"], entry.get("limit"), entry.get("columns") or {}
    if path is None or (isinstance(path, str) and not path):
        raise DataError(f"{what}.path = {path!r}: must be a file, a data set or another source of rows")
    if limit is not None and (type(limit) is not int or limit < 1):
        raise DataError(f"{what}.limit = {limit!r}: must be a whole number of rows, at least 1; leave it out for all")
    if not isinstance(columns, Mapping) or not all(isinstance(each, str) for pair in columns.items() for each in pair):
        raise DataError(f"{what}.columns = {shorten(columns)}: must rename columns, our name: theirs")
    name = entry.get("name")
    if name is not None and not (isinstance(name, str) and re.fullmatch(r"[\w.-]+", name)):
        raise DataError(f"{what}.name = {shorten(name)}: must be a word of letters, digits, '_', '.' and '-'")
    weights = _weights(entry["weight"], f"{what}.weight") if entry.get("weight") is not None else ()
    return Source(path, name or _name_of(path, what), weights, limit or 0, dict(columns), what)


def _weights(given: Any, what: str) -> tuple[tuple[int, float], ...]:
    if not isinstance(given, Mapping):
        if not _is_number(given) or given <= 0:
            raise DataError(
                f"{what} = {shorten(given)}: must be a number above 0, or weights by step, as in {{0: 3, 1000: 1}}; "
                "leave a source out that is not to be read"
            )
        return ((0, float(given)),)
    if not given:
        raise DataError(f"{what} = {{}}: must have the weight at one step at least, as in {{0: 3, 1000: 1}}")
    found: dict[int, float] = {}
    for step, weight in given.items():
        if isinstance(step, bool) or not re.fullmatch(r"\d+", str(step)):
            raise DataError(f"{what}: {step!r} is no step; write weights by step, as in {{0: 3, 1000: 1}}")
        if not _is_number(weight) or weight < 0:
            raise DataError(f"{what}[{step}] = {shorten(weight)}: must be a number of at least 0")
        if int(step) in found:
            raise DataError(
                f"{what}: has two weights at step {int(step)}, {found[int(step)]:g} and {weight:g}; give one"
            )
        found[int(step)] = float(weight)
    return tuple(sorted(found.items()))


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value)


def _name_of(path: object, what: str) -> str:
    """Return the stem of a file, the last folder of a pattern, the name of a data set, or the number of a source."""
    number: str = re.findall(r"\d+", what)[-1]
    if not isinstance(path, (str, Path)):
        return number
    words = [part for part in re.split(r"[/\\]", str(path)) if part and not set(part) & {"*", "?"}]
    stem: str = re.sub(r"[^\w-]+", "_", words[-1].split(".")[0] if words else "").strip("_")
    return stem or number


FORMS = (
    "a list of rows or of files, a datasets.Dataset, the path of a .jsonl, .json, .csv, .tsv, .parquet or .txt file, "
    "'module:function', or a hub data set 'org/name[[:subset]:split]'"
)


SPLITS_FILE = "dataset_dict.json"
"""File of a saved data set that has splits."""
ROWS_FILE = "dataset_info.json"
"""File of a saved data set, or of each of its splits."""
BOOLEANS = {"true": True, "false": False, "1": True, "0": False}
"""Words for true and false, in small letters."""
_TYPES: dict[str, Callable[[str], Any]] = {
    "int": int, "float": float, "bool": lambda text: BOOLEANS[text.lower()], "json": from_json,
}  # fmt: skip
"""What reads a text as a value of a type."""


def load_source(source: Any, what: str = "prompts") -> list[Any]:
    """Load any source of rows into a list; the source is not modified.

    A string (or path) is, in this order: an existing file; the folder of a saved data set, `folder` or `folder:split`;
    a pattern of files, or a folder with files; a hub data set if it contains a slash (`org/name`, `org/name:split` or
    `org/name:subset:split`); or `module:function`, which is called without arguments and may return any other source.
    The split defaults to `train`. A list of file names (`file_names`) has the rows of all of these files, in their
    order, and a mixture without weights those of its sources.

    Args:
        source: a list, tuple or other finite iterable, a `datasets.Dataset`, a path, a reference, or a hub id.
        what: the option that holds the source, for errors.

    Raises:
        DataError: the source does not exist, or cannot be read as rows.
    """
    if isinstance(source, (str, Path)):
        return _load_named(str(source), what)
    if (sources := parse_mixture(source, what)) is not None:
        return _load_all(sources, what)
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
        rows = list(source.to_dict("records"))
        _name_floats(rows, what)
        return rows
    if (names := file_names(source, what)) is not None:
        return [row for i, name in enumerate(names) for row in _load_named(name, f"{what}[{i}]")]
    if isinstance(source, Iterable) and not isinstance(source, (bytes, bytearray)):
        try:
            return list(source)
        except (Exception, SystemExit) as error:  # a user's generator may raise anything
            raise DataError(f"{what}: reading the rows raised {describe_error(error)}") from error
    raise DataError(f"{what}: cannot read rows from {shorten(source)} ({type(source).__name__}); pass {FORMS}")


def _name_floats(rows: Sequence[Mapping[Any, object]], what: str) -> None:
    """Log a warning if pandas has made floats of integers in arguments of calls, which lie beside Arrow's nulls."""
    for i, row in enumerate(rows):
        for found in _arguments_in(row):
            whole = [value for value in found.values() if isinstance(value, float) and value.is_integer()]
            if whole and any(value is None for value in found.values()):
                get_logger("data").warning(
                    f"{what}[{i}]: the arguments of a call of a tool are {shorten(dict(found))}: pandas reads whole "
                    "numbers as floats where other rows lack the key, and so they are trained. Give the path of the "
                    "file, or read it with pandas.read_parquet(..., dtype_backend='pyarrow')"
                )
                return


def _arguments_in(value: Any) -> Iterator[Mapping[Any, object]]:
    """Yield the mappings under `arguments` within a value of a DataFrame."""
    if isinstance(value, Mapping):
        for key, each in value.items():
            if key == "arguments" and isinstance(each, Mapping):
                yield each
            elif not isinstance(each, str):
                yield from _arguments_in(each)
    elif type(value).__module__ == "numpy" or isinstance(value, list | tuple):
        for each in value if getattr(value, "ndim", 1) else ():
            yield from _arguments_in(each)


def _load_all(sources: Sequence[Source], what: str) -> list[object]:
    if any(each.weights for each in sources):
        raise DataError(
            f"{what}: is a mixture with weights, and all of its rows are read alike here (as rewards, or with an "
            "environment); leave the weights out"
        )
    return [row for each in sources for row in load_part(each, {})]


def load_part(source: Source, columns: Mapping[str, str]) -> list[object]:
    """Load the rows of a source of a mixture, with its own columns renamed.

    Args:
        source: the source.
        columns: `data.columns`, which are renamed later.

    Raises:
        DataError: it cannot be read, has no rows, is a mixture itself, or has none of the columns that it renames.
    """
    if parse_mixture(source.path, source.what) is not None:
        raise DataError(f"{source.what}.path: is a mixture; list its sources among those of the first one")
    rows = load_source(source.path, source.what)
    rows = rows[: source.limit or len(rows)]
    if not rows:
        raise DataError(f"{source.what}: {shorten(source.path)} has no rows; leave this source out")
    names = source.expected_columns(columns)
    found = dict.fromkeys(key for row in rows if isinstance(row, Mapping) for key in row) if names else {}
    if absent := next((name for name in names if name not in found), None):
        raise DataError(f"{source.what}.columns: no row has the column {absent!r} (columns: {list_names(found)})")
    return [rename(row, names) for row in rows]


def rename(row: object, names: Mapping[str, str]) -> Any:
    """Return a row whose column `name` is called `names[name]`."""
    if not names or not isinstance(row, Mapping):
        return row
    kept = {key: value for key, value in row.items() if key not in names and key not in names.values()}
    return kept | {names[key]: value for key, value in row.items() if key in names}


def read_types(rows: list[object], types: Mapping[str, str], what: str) -> list[object]:
    """Return rows in which the texts of some columns are values; other values, such as None, stay as they are.

    Args:
        rows: the rows, in which columns are renamed.
        types: `data.column_types`.
        what: the option that holds the rows, for errors.

    Raises:
        DataError: a text is none of its column's type.
    """
    if not types:
        return rows
    return [
        {**row, **{name: _typed(row[name], types[name], f"{what}[{i}][{name!r}]") for name in types if name in row}}
        if isinstance(row, Mapping)
        else row
        for i, row in enumerate(rows)
    ]


def read_number(value: object) -> Any:
    """Return the number that a text is, such as a cell of a table; all else as it is, to be checked."""
    if isinstance(value, str):
        with suppress(ValueError):
            return float(value)
    return value


def _typed(value: object, kind: str, where: str) -> object:
    if not isinstance(value, str):
        return value
    try:
        return _TYPES[kind](value.strip())
    except (ValueError, KeyError):
        known = f" ({', '.join(BOOLEANS)})" if kind == "bool" else ""
        raise DataError(
            f"{where}: is {shorten(value)}, and data.column_types states that it is of the type {kind}{known}; correct "
            "it, or leave the column out of data.column_types"
        ) from None


def file_names(source: object, what: str) -> list[str] | None:
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
        f"{shorten(names[other], 80)} does not. A list has either names of files ({', '.join(READERS)}) or texts; "
        "write a text that looks like a file's name as a row, such as {prompt: ...} or {text: ...}"
    )


def _load_named(name: str, what: str) -> list[object]:
    path = existing_path(name)
    if path is not None and path.is_dir():
        return _load_folder(path, "", name, what)
    if path is not None:
        return read_file(path, what)
    if is_pattern(name):
        return [row for each in matching_files(name, what) for row in read_file(each, what)]
    folder, _, split = name.rpartition(":")
    if folder and (saved := existing_path(folder)) is not None and (saved / SPLITS_FILE).exists():
        return _load_folder(saved, split, name, what)
    if type_of(name) in READERS:
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
    return type_of(name[-16:]) in READERS


def _is_file_name(text: str) -> bool:
    return _ends_like_data(text) and (len(text.split()) == 1 or _is_file(text))


def _is_file(name: str) -> bool:
    path = existing_path(name)
    if path is None or path.is_file():
        return path is not None and bool(path.suffix)
    return is_saved(path)


def is_saved(folder: Path) -> bool:
    """Return whether a folder has a data set that `save_to_disk` of the `datasets` library wrote."""
    return any((folder / name).exists() for name in (SPLITS_FILE, ROWS_FILE))


def _load_folder(folder: Path, split: str, name: str, what: str) -> list[object]:
    """Load a data set that was saved by `save_to_disk`, of several splits `split`, by default `train`, or all files."""
    if not is_saved(folder):
        return [row for each in files_in(folder, what) for row in read_file(each, what)]
    loaded = guard_datasets(lambda library: library.load_from_disk(str(folder)), name, what)
    if isinstance(loaded, Mapping):
        if (split or "train") not in loaded:
            raise DataError(
                f"{what} = {name!r}: there is no split {split or 'train'!r}, only {list_names(loaded)}; name one, as "
                f"in {folder}:{next(iter(loaded), 'test')}"
            )
        loaded = loaded[split or "train"]
    return load_source(loaded, what)


def _call_reference(name: str, what: str) -> list[object]:
    target = load_reference(name, what)
    if callable(target):
        try:
            target = target()
        except (Exception, SystemExit) as error:  # a user's function may raise anything
            raise DataError(f"{what} = {name!r}: the function raised {describe_error(error)}") from error
    if target == name:
        raise DataError(f"{what} = {name!r}: the function returned its own name; return rows")
    return load_source(target, what)
