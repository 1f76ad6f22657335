"""Conversion of configuration and metrics to plain values, for YAML and JSON."""

from __future__ import annotations

import dataclasses
import enum
import itertools
import json
import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import attrs

MAX_DEPTH = 100
"""How deep lists and mappings may be nested, in configurations and in rows of data."""
_NESTED = (dict, list, tuple, Mapping)


def unstructure(value: Any) -> Any:
    """Convert a config object to mappings, lists, numbers, text and null for YAML and JSON.

    Objects without a plain form (functions, data sets, models) become text that names them, which cannot be loaded.
    """
    if value is None or isinstance(value, bool | int | float | str):
        return _plain_scalar(value)
    if isinstance(value, Mapping):
        return {key if isinstance(key, int) else str(key): unstructure(part) for key, part in value.items()}
    if isinstance(value, set | frozenset):  # sorted, so that the order is the same in every process
        return sorted((unstructure(part) for part in value), key=str)
    if isinstance(value, list | tuple):
        return [unstructure(part) for part in value]
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if attrs.has(type(value)):
        return {
            field.alias or field.name: unstructure(getattr(value, field.name)) for field in attrs.fields(type(value))
        }
    if dataclasses.is_dataclass(value) and not isinstance(value, type):  # such as options of other libraries
        parts = ((field.name, getattr(value, field.name)) for field in dataclasses.fields(value))
        defaults = {field.name: _default(field) for field in dataclasses.fields(value)}
        return {name: unstructure(part) for name, part in parts if part != defaults[name]}
    if callable(value) and hasattr(value, "__qualname__"):
        return f"{value.__module__}:{value.__qualname__}"
    if type(value).__module__ == "numpy" and getattr(value, "ndim", None) == 0:
        return value.item()
    return f"<{type(value).__module__}.{type(value).__qualname__}>"


def merge(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Return `base` updated with `over`; nested mappings are merged, all other values replaced."""
    merged = {key: merge(part, {}) if isinstance(part, Mapping) else part for key, part in base.items()}
    for key, part in over.items():
        below = merged.get(key)
        if isinstance(part, Mapping):
            merged[key] = merge(below if isinstance(below, Mapping) else {}, part)
        else:
            merged[key] = part
    return merged


def is_too_deep(value: Any) -> bool:
    """Return whether lists and mappings are nested deeper than MAX_DEPTH, as they are if one contains itself."""
    level = {id(value): value} if isinstance(value, _NESTED) else {}
    for _ in range(MAX_DEPTH):
        parts = (each.values() if isinstance(each, Mapping) else each for each in level.values())
        level = {id(part): part for part in itertools.chain.from_iterable(parts) if isinstance(part, _NESTED)}
    return bool(level)


def from_json(text: str | bytes) -> Any:
    """Return the value of a JSON text.

    Raises:
        ValueError: the text is not JSON, is nested deeper than MAX_DEPTH, or has an integer of more digits than Python
            converts.
    """
    try:
        value = json.loads(text)
        deep = len(text) > MAX_DEPTH and is_too_deep(value)
    except RecursionError:
        deep = True
    if deep:
        raise ValueError(f"lists and objects are nested more than {MAX_DEPTH} deep")
    return value


def _default(field: dataclasses.Field[Any]) -> Any:
    return field.default if field.default_factory is dataclasses.MISSING else field.default_factory()


def _plain_scalar(value: Any) -> Any:
    """Convert subclasses of plain types, such as enum members and numpy.float64, to the plain type."""
    if isinstance(value, enum.Enum):
        value = value.value  # for a member of a text enum, `str` returns its name
    for plain in (bool, int, float, str):
        if isinstance(value, plain):
            return plain(value) if type(value) is not plain else value
    return value


def to_json(value: Any, *, indent: int | None = None) -> str:
    """Return `value` as JSON, with numbers unrounded.

    Tuples and sets become lists, one-element tensors and numpy scalars numbers, paths and callables strings, and nan,
    inf and -inf null, because JSON cannot represent them.
    """
    return json.dumps(to_plain(value), indent=indent, ensure_ascii=False, allow_nan=False)


def to_plain(value: Any, *, nonfinite: Callable[[float], Any] = lambda _: None) -> Any:
    """Convert any value to dicts with string keys, lists, str, bool, int, float and None.

    Args:
        value: any value; objects without a plain form become text that describes them.
        nonfinite: returns the replacement of nan, inf and -inf.
    """
    if isinstance(value, Mapping):
        return {_encodable(str(key)): to_plain(item, nonfinite=nonfinite) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_plain(item, nonfinite=nonfinite) for item in value]
    if isinstance(value, set | frozenset):  # sorted, so that the order is the same in every process
        return sorted((to_plain(item, nonfinite=nonfinite) for item in value), key=str)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else nonfinite(value)
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return int(value)
    # torch tensors and numpy arrays have tolist; this module imports neither
    tolist = None if isinstance(value, type) else getattr(value, "tolist", None)
    return to_plain(tolist(), nonfinite=nonfinite) if callable(tolist) else _describe(value)


def _describe(value: object) -> str:
    if isinstance(value, str | Path):
        return _encodable(str(value))
    if callable(value):
        return f"{getattr(value, '__module__', '')}:{getattr(value, '__qualname__', type(value).__qualname__)}"
    return f"<{type(value).__module__}.{type(value).__qualname__}>"


def _encodable(text: str) -> str:
    """Return text in which lone surrogates, as from `surrogateescape`, are escaped: UTF-8 cannot encode them."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()
