"""The sources of a mixture: a list of mappings with `path`, each with a weight, as in `{path: a.jsonl, weight: 3}`."""

from __future__ import annotations

import difflib
import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
import numpy as np

from rlcore.errors import DataError
from rlcore.safe_text import shorten

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


def parse_mixture(given: Any, what: str) -> list[Source] | None:
    """Return the sources of a mixture, or None if `given` is anything else, such as a list of rows.

    A mixture is a source, or a list with one: a mapping with `path` that has no keys but those of a source, misspelt
    ones included.

    Raises:
        DataError: a source has an unknown key or a value that cannot be used, two have the same name, some have a
            weight and others none, or evaluation rows have weights.
    """
    if isinstance(given, Mapping):
        entries: Sequence[Any] = [given] if _is_source(given) else []
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


def _is_source(entry: Any) -> bool:
    if not isinstance(entry, Mapping) or "path" not in entry:
        return False
    unknown = [str(key) for key in entry if key not in KEYS]
    return not unknown or "weight" in entry or "limit" in entry or all(map(_near, unknown))


def _near(key: str) -> str:
    return next(iter(difflib.get_close_matches(key, KEYS, n=1, cutoff=0.7)), "")


def _parse(entry: Any, what: str) -> Source:
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


def _name_of(path: Any, what: str) -> str:
    """Return the stem of a file, the last folder of a pattern, the name of a data set, or the number of a source."""
    number: str = re.findall(r"\d+", what)[-1]
    if not isinstance(path, (str, Path)):
        return number
    words = [part for part in re.split(r"[/\\]", str(path)) if part and not set(part) & {"*", "?"}]
    stem: str = re.sub(r"[^\w-]+", "_", words[-1].split(".")[0] if words else "").strip("_")
    return stem or number
