"""Other valid values of an option, chosen by its type and range."""

from __future__ import annotations

import typing
from collections.abc import Iterator, Mapping
from typing import Any, Literal

from rlcore.config import structure
from rlcore.config.describe import arms, fields, section_class
from rlcore.errors import ConfigError

MOST = 3
"""Values of an option that are tried."""


def numeric_options(config: Any, prefix: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Yield the dotted path, type and value of every option that is a number, a choice or a pair of numbers."""
    cls: Any = type(config)
    for name, (field, tp) in fields(cls).items():
        value = getattr(config, field.name)
        if section_class(tp) is not None and value is not None:
            yield from numeric_options(value, f"{prefix}{name}.")
        elif any(True for _ in _candidates(tp, value)):
            yield f"{prefix}{name}", tp, value


def other_values(cls: type, options: Mapping[str, Any], path: str, tp: Any, value: Any) -> list[Any]:
    """Return up to MOST other values of the option at `path`, each of which the options class accepts."""
    found: list[Any] = []
    for candidate in _candidates(tp, value):
        if candidate != value and candidate not in found and _is_valid(cls, options, path, candidate):
            found.append(candidate)
    return found[:MOST]


def with_option(options: Mapping[str, Any], path: str, value: Any) -> dict[str, Any]:
    """Return options with the value at a dotted path replaced."""
    first, _, rest = path.partition(".")
    inner = options.get(first)
    below = with_option(inner if isinstance(inner, Mapping) else {}, rest, value) if rest else value
    return {**options, first: below}


def _is_valid(cls: type, options: Mapping[str, Any], path: str, value: Any) -> bool:
    try:
        structure(cls, with_option(options, path, value), where="options")
    except ConfigError:
        return False
    return True


def _candidates(tp: Any, value: Any) -> Iterator[Any]:
    for arm in arms(tp):
        if typing.get_origin(arm) is Literal:
            yield from typing.get_args(arm)
        elif arm is bool:
            yield from (False, True)
        elif arm is int:
            yield from (2 * value, value - 1, value + 1) if isinstance(value, int) and value else (1, 100, 8)
        elif arm is float:
            yield from (
                (value / 2, 1e-6, 1.000001, 2 * value) if value and not isinstance(value, str) else (0.5, 0.01, 1.5)
            )
        elif typing.get_origin(arm) is tuple and set(typing.get_args(arm)) == {float}:
            yield [each / 2 for each in value] if value else [0.5] * len(typing.get_args(arm))
