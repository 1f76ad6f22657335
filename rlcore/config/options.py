"""Declarations of the options of a component: each has a default, a meaning, a range, a unit and a source."""

from __future__ import annotations

import numbers
import operator
from collections.abc import Mapping
from typing import Any, TypeVar, cast, dataclass_transform

import attrs

from rlcore.errors import ConfigError

C = TypeVar("C")

_COMPARE = {"ge": operator.ge, "gt": operator.gt, "le": operator.le, "lt": operator.lt}


def option(
    default: Any,
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


def evolve(instance: C, **changes: Any) -> C:
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


def _range_as_text(metadata: Mapping[str, Any]) -> str:
    text = describe_range(metadata)
    words = {">=": "be at least", ">": "be greater than", "<=": "be at most", "<": "be less than"}
    sign, _, bound = text.partition(" ")
    return f"must {words[sign]} {bound}" if sign in words else f"must lie in {text}"


def _first(inclusive: float | None, exclusive: float | None) -> float | None:
    return exclusive if inclusive is None else inclusive


def _check_range(instance: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
    error = range_error(value, attribute.metadata)
    if error:
        name = f"{type(instance).__name__}.{attribute.name}"
        raise ConfigError(f"{name} = {value!r}: {error} ({attribute.metadata['help']})")
