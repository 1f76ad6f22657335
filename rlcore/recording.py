"""Say in config.yaml what a run was given, so that the file can be trained from again wherever that is possible."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Any

from rlcore.errors import InputsError

MAX_ROWS = 100
"""Longer lists that came from Python are described, not written out."""


def spell(given: Any, *, whole: bool = False) -> Any:
    """Return what config.yaml shows of an input: plain values and names as they are, objects as `<Dataset of 8>`.

    Args:
        given: anything a user may pass.
        whole: write lists out however long they are, as for one that came from a file.
    """
    if given is None or isinstance(given, (str, int, float)):
        return given
    if isinstance(given, os.PathLike):
        return os.fspath(given)
    if isinstance(given, Mapping) and len(given) <= MAX_ROWS:
        return {str(key): spell(value, whole=whole) for key, value in given.items()}
    if isinstance(given, (list, tuple)) and (whole or len(given) <= MAX_ROWS):
        return [spell(value, whole=whole) for value in given]
    if callable(given) and not isinstance(given, type) and hasattr(given, "__qualname__"):
        reference = f"{given.__module__}:{given.__qualname__}"
        return reference if _names(reference, given) else f"<{reference}>"
    kind = type(given).__name__
    return f"<{kind} of {len(given)}>" if hasattr(type(given), "__len__") else f"<{kind}>"


def refuse_descriptions(given: Any, option: str) -> None:
    """Check that `given` is no description that `spell` wrote in place of an object.

    Raises:
        InputsError: it is; only the program that had the object can pass it again.
    """
    # Rows of data may well look like this; a source as a whole does not, nor does a function.
    for value in given if isinstance(given, (list, tuple)) and option.endswith("_fn") else [given]:
        text = value.get("fn") if isinstance(value, Mapping) else value
        if isinstance(text, str) and text.startswith("<") and text.endswith(">"):
            raise InputsError(
                f"{option} = {text!r}: stands for what a program passed to rlcore.train and a file cannot hold; "
                f"name a file or 'module:function' in its place, or pass {option.rpartition('.')[2]} from Python"
            )


def _names(reference: str, function: Any) -> bool:
    """Tell whether `module:attribute` leads to the very function, from another program too."""
    module, _, path = reference.partition(":")
    if module == "__main__" or "<" in path or module not in sys.modules:
        return False
    found: Any = sys.modules[module]
    for step in path.split("."):
        found = getattr(found, step, None)
    return found is function
