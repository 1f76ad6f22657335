"""Data sets of the `datasets` library, from the hub or in memory, and streams of it."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

from rlcore.errors import DataError
from rlcore.logging import is_progress_bar_enabled


def parse_hub_name(name: str, what: str) -> tuple[str, str | None, str]:
    """Return the data set, its subset and its split: `org/name`, `org/name:split` or `org/name:subset:split`."""
    repository, *parts = re.split(r":(?![^\[]*\])", name)  # a split may be sliced, as in train[:100]
    if len(parts) > 2:
        raise DataError(f"{what} = {name!r}: has {len(parts)} parts after the data set; write org/name:subset:split")
    subset, split = (None, *parts) if len(parts) == 1 else parts or (None, "")
    return repository, subset or None, split or "train"


def guard_datasets(load: Callable[[Any], Any], name: str, what: str) -> Any:
    """Call `load` with the `datasets` library.

    Raises:
        DataError: the library cannot load the data set.
    """
    import datasets as library

    try:
        with _progress_bars():
            return load(library)
    except (OSError, ValueError, RuntimeError, library.exceptions.DatasetsError) as error:
        reason = " ".join(str(error).strip().splitlines()[:2])  # the second lists the subsets, for example
        raise DataError(
            f"{what} = {name!r}: the datasets library could not load it, {type(error).__name__}: {reason}. "
            f"Check the name (org/name:subset:split), or load it yourself and pass the datasets.Dataset"
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


def is_stream(source: Any) -> bool:
    """Return whether a source is an iterable data set of the `datasets` library, which is read row by row."""
    return is_instance(source, "datasets", "IterableDataset")


def refuse_stream(what: str, source: Any) -> NoReturn:
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
