"""Turn values into JSON that every reader takes."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any


def to_json(value: Any, *, indent: int | None = None) -> str:
    """Write `value` as JSON; numbers are not rounded, and nan, inf and -inf become null, for JSON has no word for them.

    Tuples and sets become lists, one-element tensors and numpy scalars numbers, paths and callables strings.
    """
    return json.dumps(to_plain(value), indent=indent, ensure_ascii=False, allow_nan=False)


def to_plain(value: Any, *, nonfinite: Callable[[float], Any] = lambda _: None) -> Any:
    """Return `value` as dicts with string keys, lists, str, bool, int, float and None.

    Args:
        value: anything; what has no plain form is described in words.
        nonfinite: what to put for nan, inf and -inf.
    """
    if isinstance(value, Mapping):
        return {str(key): to_plain(item, nonfinite=nonfinite) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [to_plain(item, nonfinite=nonfinite) for item in value]
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else nonfinite(value)
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return int(value)
    # torch and numpy both have tolist, and neither is imported here
    tolist = None if isinstance(value, type) else getattr(value, "tolist", None)
    return to_plain(tolist(), nonfinite=nonfinite) if callable(tolist) else _describe(value)


def _describe(value: object) -> str:
    if isinstance(value, str | Path):
        # A lone surrogate, as `surrogateescape` leaves behind, cannot be written as UTF-8.
        return str(value).encode("utf-8", "backslashreplace").decode()
    if callable(value):
        return f"{getattr(value, '__module__', '')}:{getattr(value, '__qualname__', type(value).__qualname__)}"
    return f"<{type(value).__module__}.{type(value).__qualname__}>"
