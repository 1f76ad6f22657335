"""The forms in which a user may name reward functions, from a lambda to a line of YAML."""

from __future__ import annotations

import functools
import math
import numbers
import re
from collections.abc import Callable, Mapping
from typing import Any

from rlcore.data.sources import load_reference
from rlcore.errors import DataError

FORMS = (
    "a reward is a function, 'module:function', a registered reward's name, a pair (reward, weight), a mapping "
    "{fn, weight, name}, a list of these, or a mapping from names to them"
)


def read_forms(reward_fn: Any) -> list[tuple[str, Callable[..., Any], float]]:
    """Take any form of `reward_fn` apart into names, functions and weights.

    Raises:
        DataError: it is none of the forms, or a weight is no finite number.
        UnknownReward: nobody registered a reward of that name.
    """
    if isinstance(reward_fn, Mapping) and "fn" not in reward_fn:
        found = [(str(name), *_spec(spec)[1:]) for name, spec in reward_fn.items()]
    elif isinstance(reward_fn, (list, tuple)) and not _is_weighted(reward_fn):
        found = [_spec(spec) for spec in reward_fn]
    else:
        found = [_spec(reward_fn)]
    if not found:
        raise DataError(f"reward_fn is empty: {reward_fn!r}; {FORMS}")
    return found


def _spec(spec: Any) -> tuple[str, Any, float]:
    if isinstance(spec, Mapping):
        unknown = sorted(map(str, set(spec) - {"fn", "weight", "name"}))
        if unknown or "fn" not in spec:
            raise DataError(f"reward_fn: {dict(spec)!r} must have 'fn' and may have 'weight' and 'name', nothing else")
        name, call = resolve(spec["fn"], "reward_fn")
        return str(spec.get("name", name)), call, _weight(spec.get("weight", 1.0), name)
    if _is_weighted(spec):
        name, call = resolve(spec[0], "reward_fn")
        return name, call, _weight(spec[1], name)
    return *resolve(spec, "reward_fn"), 1.0


def _is_weighted(spec: Any) -> bool:
    pair = isinstance(spec, (list, tuple)) and len(spec) == 2
    return pair and not (callable(spec[1]) or isinstance(spec[1], (str, Mapping, list, tuple)))


def _weight(weight: Any, name: str) -> float:
    if isinstance(weight, bool) or not isinstance(weight, numbers.Real) or not math.isfinite(weight):
        raise DataError(f"reward_fn: the weight of '{name}' is {weight!r}; it must be a finite number")
    return float(weight)


def resolve(function: Any, what: str) -> tuple[str, Callable[..., Any]]:
    """Return a function and its name, given itself, as `module:function`, or (a reward) as registered.

    Args:
        function: any of these.
        what: the option, "reward_fn" or "metric_fn".
    """
    name, found = _look_up(function, what) if isinstance(function, str) else (_name(function), function)
    if not callable(found):
        hint = f"; {FORMS}" if what == "reward_fn" else "; give a function or 'module:function'"
        raise DataError(f"{what}: {shorten(function)} ({type(found).__name__}) cannot be called{hint}")
    return name or what.removesuffix("_fn"), found


def _look_up(reference: str, what: str) -> tuple[str, Any]:
    if what == "reward_fn":
        from rlcore.registry import registries

        known = registries().rewards
        if ":" not in reference or reference in known:
            return reference, known.get(reference).target()
    if ":" not in reference:
        raise DataError(f"{what} = {reference!r}: is not of the form 'module:function'")
    return re.split(r"[:.]", reference)[-1], load_reference(reference, what)


def _name(function: Any) -> str:
    while isinstance(function, functools.partial):
        function = function.func
    name = str(getattr(function, "__name__", type(function).__name__))
    return "" if name == "<lambda>" else name


def shorten(value: Any) -> str:
    """Show a value in a message, without its middle pages."""
    text = repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
