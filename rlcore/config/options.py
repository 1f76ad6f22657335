"""Declare the options of a component: values with a meaning, a range, a unit and a source; never anything computed."""

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
        default: used where nothing is said.
        help: its meaning, one line, as errors and `rlcore show` print it.
        ge: smallest value allowed; of each number, where the option holds several.
        gt: bound that values must exceed.
        le: largest value allowed.
        lt: bound that values must stay below.
        unit: of what the value counts or measures.
        source: paper (arXiv id, equation) or program the option comes from.
    """
    metadata = {"help": help, "ge": ge, "gt": gt, "le": le, "lt": lt, "unit": unit, "source": source}
    return attrs.field(default=default, metadata=metadata, validator=_check_range)


@dataclass_transform(kw_only_default=True, frozen_default=True)
def config(cls: type[C]) -> type[C]:
    """Make a frozen, keyword-only attrs class of options; out of range is an error however it is built.

    A class may derive from another one of options; its own options are listed first, the inherited ones after them.
    """
    return attrs.frozen(kw_only=True, field_transformer=_own_first)(cls)


def _own_first(_cls: type, fields: list[Any]) -> list[Any]:
    return sorted(fields, key=lambda field: field.inherited)


def evolve(instance: C, **changes: Any) -> C:
    """Return a config object with some options replaced, checked like any other."""
    changed: C = attrs.evolve(cast("Any", instance), **changes)
    return changed


def complain_of_range(value: Any, metadata: Mapping[str, Any]) -> str:
    """Say what is allowed if `value`, or a number in it, is out of the range of its option; else nothing."""
    if not describe_range(metadata) or value is None or isinstance(value, str):
        return ""
    if isinstance(value, tuple | list):
        return next(filter(None, (complain_of_range(part, metadata) for part in value)), "")
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        return "must be a number"
    bounds = ((compare, metadata.get(name)) for name, compare in _COMPARE.items())
    fits = all(compare(value, bound) for compare, bound in bounds if bound is not None)
    return "" if fits else _say_range(metadata)


def describe_range(metadata: Mapping[str, Any]) -> str:
    """Write the range of an option as an interval (`[0, 1)`) or a comparison (`>= 1`); nothing if it has none."""
    ge, gt, le, lt = (metadata.get(bound) for bound in ("ge", "gt", "le", "lt"))
    low, high = _first(ge, gt), _first(le, lt)
    if low is not None and high is not None:
        return f"{'[' if ge is not None else '('}{low}, {high}{']' if le is not None else ')'}"
    if low is not None:
        return f"{'>=' if ge is not None else '>'} {low}"
    if high is not None:
        return f"{'<=' if le is not None else '<'} {high}"
    return ""


def _say_range(metadata: Mapping[str, Any]) -> str:
    text = describe_range(metadata)
    words = {">=": "be at least", ">": "be greater than", "<=": "be at most", "<": "be less than"}
    sign, _, bound = text.partition(" ")
    return f"must {words[sign]} {bound}" if sign in words else f"must lie in {text}"


def _first(inclusive: float | None, exclusive: float | None) -> float | None:
    return exclusive if inclusive is None else inclusive


def _check_range(instance: Any, attribute: attrs.Attribute[Any], value: Any) -> None:
    complaint = complain_of_range(value, attribute.metadata)
    if complaint:
        name = f"{type(instance).__name__}.{attribute.name}"
        raise ConfigError(f"{name} = {value!r}: {complaint} ({attribute.metadata['help']})")
