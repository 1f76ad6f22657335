"""Data sets of the `datasets` library, from the hub or in memory, and streams of it."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

from rlcore.errors import DataError
from rlcore.logging import is_progress_bar_enabled

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


def guard_datasets(load: Callable[[Any], Any], name: str, what: str, *, advice: str = BY_NAME) -> Any:
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
