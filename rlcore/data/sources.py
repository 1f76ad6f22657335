"""Where rows come from: lists, data sets, files, the hub, or a function of the user's own.

Nothing here changes what the caller handed in; rows are passed on as they are.
"""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from rlcore.errors import DataError
from rlcore.logging import is_progress_bar_enabled

FORMS = (
    "a list, a datasets.Dataset, the path of a .jsonl, .json, .csv, .parquet or .txt file, 'module:function', "
    "or a hub data set 'org/name[:split]'"
)


def load_source(source: Any, what: str = "prompts") -> list[Any]:
    """Turn any source a user may name into a list of rows, leaving the source itself as it was.

    A string (or path) is, in this order: a file or folder that exists, a hub data set if it holds a slash (the split is
    `train` when left out), or `module:function`, which is called without arguments and may return any other source.

    Args:
        source: a list, tuple or other finite iterable, a `datasets.Dataset`, a path, a reference, or a hub id.
        what: the option the source belongs to, for messages.

    Raises:
        DataError: nothing of that name exists, or it cannot be read as rows.
    """
    if isinstance(source, (str, Path)):
        return _load_named(str(source), what)
    if isinstance(source, Mapping):
        kind = type(source).__name__
        hint = f"; name a split, as in source[{next(iter(source))!r}]" if kind == "DatasetDict" else ""
        raise DataError(f"{what}: got a {kind} with keys {_some(source)}, but rows are needed{hint or f': {FORMS}'}")
    if _is_instance(source, "datasets", "Dataset"):
        return list(source.with_format(None))
    if _is_instance(source, "pandas", "DataFrame"):
        return list(source.to_dict("records"))
    if isinstance(source, Iterable) and not isinstance(source, (bytes, bytearray)):
        return list(source)
    raise DataError(f"{what}: cannot read rows from {source!r} ({type(source).__name__}); give {FORMS}")


def load_reference(reference: str, what: str) -> Any:
    """Import what a user's `module:attribute` names, with the working folder importable for just this import.

    The reference is the user's own code, so a file beside the configuration may hold it. The working folder comes last
    on the path and leaves it again afterwards: it shadows no installed module, and nothing else is loaded from it.

    Raises:
        DataError: there is no such module or attribute, or importing the module failed.
    """
    module_name, _, attribute = reference.partition(":")
    here = str(Path.cwd())
    sys.path.append(here)
    importlib.invalidate_caches()
    try:
        target: Any = importlib.import_module(module_name)
    except Exception as error:  # a user's module may raise anything while it is imported
        kind = type(error).__name__
        raise DataError(
            f"{what} = {reference!r}: importing '{module_name}' failed, {kind}: {error}. Modules are looked for among "
            f"the installed ones and in {here}"
        ) from error
    finally:
        sys.path.remove(here)
    for part in attribute.split("."):
        try:
            target = getattr(target, part)
        except AttributeError:
            file = getattr(target, "__file__", None) or module_name
            raise DataError(f"{what} = {reference!r}: {file} holds no '{part}'; it has {_public(target)}") from None
    return target


def _load_named(name: str, what: str) -> list[Any]:
    path = Path(name).expanduser()
    if path.is_dir():
        return _guarded(lambda: _datasets().load_from_disk(str(path)), name, what)
    if path.exists():
        return _read_file(path, what)
    if path.suffix.lower() in _READERS:
        raise DataError(f"{what} = {name!r}: there is no such file, looked for at {path.absolute()}")
    if "/" in name:
        repository, _, split = name.partition(":")
        return _guarded(lambda: _datasets().load_dataset(repository, split=split or "train"), name, what)
    if ":" in name:
        return _call_reference(name, what)
    raise DataError(
        f"{what} = {name!r}: names no file, no 'module:function' and no hub data set 'org/name'. "
        f"A single text goes into a list: [{name!r}]"
    )


def _call_reference(name: str, what: str) -> list[Any]:
    target = load_reference(name, what)
    if callable(target):
        try:
            target = target()
        except Exception as error:  # a user's function may raise anything
            raise DataError(f"{what} = {name!r}: the function raised {type(error).__name__}: {error}") from error
    if target == name:
        raise DataError(f"{what} = {name!r}: the function returned its own name; return rows")
    return load_source(target, what)


def _read_file(path: Path, what: str) -> list[Any]:
    reader = _READERS.get(path.suffix.lower())
    if reader is None:
        raise DataError(
            f"{what} = {str(path)!r}: cannot tell what a '{path.suffix}' file holds; known are {', '.join(_READERS)}"
        )
    try:
        return reader(path, what)
    except UnicodeDecodeError as error:
        raise DataError(f"{what} = {str(path)!r}: is not UTF-8 text ({error}); convert it first") from error


def _read_lines(path: Path, what: str) -> list[Any]:
    del what  # any text will do
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
    dataset = _datasets().Dataset
    read = dataset.from_csv if path.suffix.lower() == ".csv" else dataset.from_parquet
    return _guarded(lambda: read(str(path)), str(path), what)


_READERS: dict[str, Callable[[Path, str], list[Any]]] = {
    ".jsonl": _read_json_lines,
    ".json": _read_json,
    ".csv": _read_table,
    ".parquet": _read_table,
    ".txt": _read_lines,
}


def _parse(text: str, where: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise DataError(f"{where}: is not JSON: {error}. The text begins {text[:40]!r}") from error


def _datasets() -> Any:
    import datasets

    return datasets


def _guarded(load: Callable[[], Any], name: str, what: str) -> list[Any]:
    try:
        with _bars_if_wanted():
            loaded = load()
    except (OSError, ValueError, RuntimeError, _datasets().exceptions.DatasetsError) as error:
        reason = str(error).strip().splitlines() or [""]
        raise DataError(
            f"{what} = {name!r}: the datasets library could not load it, {type(error).__name__}: {reason[0]}. "
            f"Check the name, or load it yourself and pass the datasets.Dataset"
        ) from error
    return load_source(loaded, what)


@contextmanager
def _bars_if_wanted() -> Iterator[None]:
    """Let the libraries show how far loading is, but where progress bars are switched off."""
    from huggingface_hub import utils as hub

    libraries = () if is_progress_bar_enabled() else (_datasets(), hub)
    silenced = [library for library in libraries if not library.are_progress_bars_disabled()]
    for library in silenced:
        library.disable_progress_bars()
    try:
        yield
    finally:
        for library in silenced:
            library.enable_progress_bars()


def _is_instance(value: object, module: str, name: str) -> bool:
    # An instance of the class can only exist if its module has been imported already.
    loaded = sys.modules.get(module)
    return loaded is not None and isinstance(value, getattr(loaded, name))


def _some(names: Iterable[Any]) -> str:
    listed = [repr(name) for name in names]
    return ", ".join(listed[:8]) + (", ..." if len(listed) > 8 else "") if listed else "none"


def _public(target: object) -> str:
    return _some(name for name in vars(target) if not name.startswith("_"))
