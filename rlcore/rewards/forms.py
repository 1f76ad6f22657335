"""The forms in which a user may name reward functions, from a lambda to a line of YAML."""

from __future__ import annotations

import functools
import math
import numbers
import re
from collections.abc import Callable, Mapping
from typing import Any

import attrs

from rlcore.data.sources import load_reference
from rlcore.errors import DataError

FORMS = (
    "a reward is a function, 'module:function', a registered reward's name, a pair (reward, weight), a mapping "
    "{fn, weight, name} (and the options of a registered one), a list of these, or a mapping from names to them"
)
OWN_KEYS = ("fn", "weight", "name")
"""What a mapping says of any reward; its other keys are options of a registered one."""


@attrs.frozen(eq=False)
class RewardForm:
    """Hold one reward as a user named it, nothing loaded yet.

    Attributes:
        fn: the function, or what it is called by.
        path: where it was named, as `reward_fn[1]`.
        name: what the user calls it in metrics, None where nothing was said.
        weight: what it is multiplied by in the total.
        options: the further keys of its mapping.
    """

    fn: Any
    path: str
    name: str | None = None
    weight: float = 1.0
    options: Mapping[str, Any] = attrs.field(factory=dict)


def read_forms(reward_fn: Any, path: str = "reward_fn") -> list[RewardForm]:
    """Take any form of `reward_fn` apart; `path` says where it was given.

    Raises:
        DataError: it is none of the forms, or a weight is no finite number.
    """
    if isinstance(reward_fn, Mapping) and "fn" not in reward_fn:
        found = [attrs.evolve(_read(spec, f"{path}.{name}"), name=str(name)) for name, spec in reward_fn.items()]
    elif isinstance(reward_fn, (list, tuple)) and not _is_weighted(reward_fn):
        found = [_read(spec, f"{path}[{i}]") for i, spec in enumerate(reward_fn)]
    else:
        found = [_read(reward_fn, path)]
    if not found:
        raise DataError(f"reward_fn is empty: {reward_fn!r}; {FORMS}")
    return found


def _read(spec: Any, path: str) -> RewardForm:
    if isinstance(spec, Mapping):
        if "fn" not in spec:
            raise DataError(f"{path}: {dict(spec)!r} must have 'fn', and may have 'weight' and 'name'")
        name = None if spec.get("name") is None else str(spec["name"])
        options = {key: value for key, value in spec.items() if key not in OWN_KEYS}
        return RewardForm(spec["fn"], path, name, _weight(spec.get("weight", 1.0), spec["fn"]), options)
    if _is_weighted(spec):
        return RewardForm(spec[0], path, weight=_weight(spec[1], spec[0]))
    return RewardForm(spec, path)


def _is_weighted(spec: Any) -> bool:
    pair = isinstance(spec, (list, tuple)) and len(spec) == 2
    return pair and not (callable(spec[1]) or isinstance(spec[1], (str, Mapping, list, tuple)))


def _weight(weight: Any, function: Any) -> float:
    if isinstance(weight, bool) or not isinstance(weight, numbers.Real) or not math.isfinite(weight):
        name = function if isinstance(function, str) else _name(function)
        raise DataError(f"reward_fn: the weight of '{name}' is {weight!r}; it must be a finite number")
    return float(weight)


def resolve(function: Any, what: str) -> tuple[str, Callable[[], Callable[..., Any]]]:
    """Return the name of a function, given itself or as `module:function`, and what loads it.

    Args:
        function: any of these.
        what: the option, "reward_fn" or "metric_fn".

    Raises:
        DataError: it is neither. What loads it raises it too, where nothing that can be called is found.
    """
    if not isinstance(function, str):
        _check_callable(function, function, what)
        return _name(function) or what.removesuffix("_fn"), lambda: function
    if ":" not in function:
        raise DataError(f"{what} = {function!r}: is not of the form 'module:function'")

    def load() -> Callable[..., Any]:
        return _check_callable(load_reference(function, what), function, what)

    return re.split(r"[:.]", function)[-1], load


def _check_callable(found: Any, given: Any, what: str) -> Callable[..., Any]:
    if callable(found):
        call: Callable[..., Any] = found
        return call
    hint = f"; {FORMS}" if what == "reward_fn" else "; give a function or 'module:function'"
    raise DataError(f"{what}: {shorten(given)} ({type(found).__name__}) cannot be called{hint}")


def _name(function: Any) -> str:
    while isinstance(function, functools.partial):
        function = function.func
    name = str(getattr(function, "__name__", type(function).__name__))
    return "" if name == "<lambda>" else name


def shorten(value: Any) -> str:
    """Show a value in a message, without its middle pages."""
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
