"""Declarations of the options of a component: each has a default, a meaning, a range, a unit and a source.

Also in this file: the options of a config class, with their types as text for errors and `rlcore show`; conversion of
configuration and metrics to plain values, for YAML and JSON.
"""

from __future__ import annotations

import dataclasses
import enum
import itertools
import json
import math
import numbers
import operator
import os
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Literal, TypeVar, Union, cast, dataclass_transform

import attrs

from rlcore.errors import ConfigError

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


def merge(base: Mapping[str, object], over: Mapping[str, object]) -> dict[str, Any]:
    """Return `base` updated with `over`; nested mappings are merged, all other values replaced."""
    merged = {key: merge(part, {}) if isinstance(part, Mapping) else part for key, part in base.items()}
    for key, part in over.items():
        below = merged.get(key)
        if isinstance(part, Mapping):
            merged[key] = merge(below if isinstance(below, Mapping) else {}, part)
        else:
            merged[key] = part
    return merged


def is_too_deep(value: object) -> bool:
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


def _default(field: dataclasses.Field[Any]) -> object:
    return field.default if field.default_factory is dataclasses.MISSING else field.default_factory()


def _plain_scalar(value: object) -> object:
    """Convert subclasses of plain types, such as enum members and numpy.float64, to the plain type."""
    if isinstance(value, enum.Enum):
        value = value.value  # for a member of a text enum, `str` returns its name
    for plain in (bool, int, float, str):
        if isinstance(value, plain):
            return plain(value) if type(value) is not plain else value
    return value


def to_json(value: object, *, indent: int | None = None) -> str:
    """Return `value` as JSON, with numbers unrounded.

    Tuples and sets become lists, one-element tensors and numpy scalars numbers, paths and callables strings, and nan,
    inf and -inf null, because JSON cannot represent them.
    """
    return json.dumps(to_plain(value), indent=indent, ensure_ascii=False, allow_nan=False)


def to_plain(value: object, *, nonfinite: Callable[[float], object] = lambda _: None) -> Any:
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


C = TypeVar("C")

_COMPARE = {"ge": operator.ge, "gt": operator.gt, "le": operator.le, "lt": operator.lt}


def option(
    default: object,
    help: str,
    *,
    ge: float | None = None,
    gt: float | None = None,
    le: float | None = None,
    lt: float | None = None,
    unit: str = "",
    source: str = "",
) -> Any:
    """Declare one option of a `@config` class.

    Args:
        default: value if the option is not set; `attrs.Factory(function, takes_self=True)` computes it from the options
            declared before.
        help: its meaning, which errors and `rlcore show` print.
        ge: smallest allowed value; applies to each number of a list.
        gt: exclusive lower bound.
        le: largest allowed value.
        lt: exclusive upper bound.
        unit: what the value counts or measures, such as `tokens`.
        source: paper (arXiv id, equation) or program that introduced the option.
    """
    metadata = {"help": help, "ge": ge, "gt": gt, "le": le, "lt": lt, "unit": unit, "source": source}
    return attrs.field(default=default, metadata=metadata, validator=_check_range)


@dataclass_transform(kw_only_default=True, frozen_default=True)
def config(cls: type[C]) -> type[C]:
    """Turn a class into a frozen, keyword-only attrs class of options, whose ranges are checked on construction.

    The class may inherit options from another config class; its own options are listed before the inherited ones.
    """
    return attrs.frozen(kw_only=True, field_transformer=_own_first)(cls)


def _own_first(_cls: type, fields: list[Any]) -> list[Any]:
    return sorted(fields, key=lambda field: field.inherited)


def evolve(instance: C, **changes: object) -> C:
    """Return a copy of a config object with some options replaced; their ranges are checked."""
    changed: C = attrs.evolve(cast("Any", instance), **changes)
    return changed


def range_error(value: Any, metadata: Mapping[str, Any]) -> str:
    """Return the allowed range as text if `value`, or a number in it, is outside; otherwise an empty string."""
    if not describe_range(metadata) or value is None or isinstance(value, str):
        return ""
    if isinstance(value, tuple | list):
        return next(filter(None, (range_error(part, metadata) for part in value)), "")
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        return "must be a number"
    bounds = ((compare, metadata.get(name)) for name, compare in _COMPARE.items())
    fits = all(compare(value, bound) for compare, bound in bounds if bound is not None)
    return "" if fits else _range_as_text(metadata)


def describe_range(metadata: Mapping[str, Any]) -> str:
    """Return the range of an option as an interval (`[0, 1)`), a comparison (`>= 1`), or an empty string."""
    ge, gt, le, lt = (metadata.get(bound) for bound in ("ge", "gt", "le", "lt"))
    low, high = _first(ge, gt), _first(le, lt)
    if low is not None and high is not None:
        return f"{'[' if ge is not None else '('}{low}, {high}{']' if le is not None else ')'}"
    if low is not None:
        return f"{'>=' if ge is not None else '>'} {low}"
    if high is not None:
        return f"{'<=' if le is not None else '<'} {high}"
    return ""


def _range_as_text(metadata: Mapping[str, object]) -> str:
    text = describe_range(metadata)
    words = {">=": "be at least", ">": "be greater than", "<=": "be at most", "<": "be less than"}
    sign, _, bound = text.partition(" ")
    return f"must {words[sign]} {bound}" if sign in words else f"must lie in {text}"


def _first(inclusive: float | None, exclusive: float | None) -> float | None:
    return exclusive if inclusive is None else inclusive


def _check_range(instance: object, attribute: attrs.Attribute[Any], value: object) -> None:
    error = range_error(value, attribute.metadata)
    if error:
        name = f"{type(instance).__name__}.{attribute.name}"
        raise ConfigError(f"{name} = {value!r}: {error} ({attribute.metadata['help']})")


@cache
def fields(cls: type) -> dict[str, tuple[attrs.Attribute[Any], Any]]:
    """Return the options of a config class by name, with their resolved types."""
    hints = typing.get_type_hints(cls)
    return {field.alias or field.name: (field, hints[field.name]) for field in attrs.fields(cls) if field.init}


def default_of(field: attrs.Attribute[Any], cls: type) -> object:
    """Return the default of an option of `cls`; one that depends on other options is that beside their defaults."""
    default: Any = field.default
    if not isinstance(default, attrs.Factory):  # type: ignore[arg-type]  # a class
        return default
    return default.factory(cls()) if default.takes_self else default.factory()


def section_class(tp: object) -> type | None:
    """Return the config class if `tp` is one, or the union of one and None; otherwise None."""
    kinds = [arm for arm in arms(tp) if arm is not type(None)]
    return kinds[0] if len(kinds) == 1 and isinstance(kinds[0], type) and attrs.has(kinds[0]) else None


def phrase(tp: Any) -> str:
    """Describe values of type `tp` for an error message, such as `a whole number`."""
    origin, args = typing.get_origin(tp), typing.get_args(tp)
    if origin is Literal:
        return ("one of " if len(args) > 1 else "") + ", ".join(map(repr, args))
    if len(arms(tp)) > 1:
        return " or ".join(phrase(arm) for arm in arms(tp))
    if origin is tuple and args[-1] is not Ellipsis:
        return f"a list of {len(args)} entries"
    if is_list(tp):
        return "a list"
    if is_mapping(tp):
        return "a mapping"
    if section_class(tp):
        return "a mapping of options"
    words = {int: "a whole number", float: "a number", bool: "true or false", str: "text", type(None): "null"}
    return words.get(tp, getattr(tp, "__name__", str(tp)))


def type_name(tp: object) -> str:
    """Return the name of a type for `rlcore show`, in terms of YAML."""
    origin, args = typing.get_origin(tp), typing.get_args(tp)
    if origin is Literal:
        return " | ".join(map(str, args))
    if origin in {Union, types.UnionType}:
        return " | ".join(map(type_name, args))
    if origin is tuple:
        return "[" + ", ".join("..." if arg is Ellipsis else type_name(arg) for arg in args) + "]"
    if isinstance(origin, type) and issubclass(origin, typing.Mapping):
        return "mapping"
    if isinstance(origin, type):
        return "list"
    words: dict[Any, str] = {type(None): "null", Any: "any", str: "text", dict: "mapping"}
    return words.get(tp, getattr(tp, "__name__", str(tp)))


def arms(tp: object) -> tuple[Any, ...]:
    """Return the members of a union; for any other type, the type itself."""
    return typing.get_args(tp) if typing.get_origin(tp) in {Union, types.UnionType} else (tp,)


def is_list(tp: object) -> bool:
    """Return whether values of this type are lists in YAML."""
    return (typing.get_origin(tp) or tp) in {tuple, list, Sequence}


def is_mapping(tp: object) -> bool:
    """Return whether values of this type are mappings with arbitrary keys in YAML."""
    return (typing.get_origin(tp) or tp) in {dict, Mapping}


@attrs.frozen
class Row:
    """The description of one option, as a row of `rlcore show`.

    Attributes:
        path: dotted path from the described class.
        type: name of the type, in terms of YAML.
        default: default as a plain value.
        range: interval or comparison; empty if there is none.
        unit, meaning, source: as declared with `option`.
    """

    path: str
    type: str
    default: Any
    range: str
    unit: str
    meaning: str
    source: str


def describe(cls: type) -> list[Row]:
    """Return the rows of all options of `cls`, nested sections included, in the order of declaration."""
    return _rows(cls, None, "")


def _rows(cls: type, base: object, prefix: str) -> list[Row]:
    rows = []
    for name, (field, tp) in fields(cls).items():
        default = default_of(field, cls) if base is None else getattr(base, field.name)
        section = section_class(tp)
        if section:
            known = isinstance(default, section)
            rows += _rows(type(default) if known else section, default if known else None, f"{prefix}{name}.")
            continue
        metadata = field.metadata
        rows.append(
            Row(
                path=prefix + name,
                type=type_name(tp),
                default="(must be given)" if default is attrs.NOTHING else unstructure(default),
                range=describe_range(metadata),
                unit=metadata.get("unit", ""),
                meaning=metadata.get("help", ""),
                source=metadata.get("source", ""),
            )
        )
    return rows
