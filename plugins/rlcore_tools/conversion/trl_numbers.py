"""Values of TRL's arguments that are texts in a file, and numbers or switches to its parser."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

from rlcore.errors import ConfigError

TEXTS = ("name", "path", "dir", "token", "config", "split", "revision", "id", "project", "field", "kwargs")
"""Last words of the names of arguments whose values are texts, digits or not."""
LISTS = ("beta",)
"""Arguments whose default is a number here, and which may be lists in TRL."""


def read_numbers(arguments: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments with numbers and switches where TRL's parser reads them from texts, such as "5e-7".

    Raises:
        ConfigError: an argument whose default is a number has a value that is none.
    """
    from transformers import TrainingArguments

    known = {field.name: field.default for field in dataclasses.fields(TrainingArguments)} | dict(defaults)
    found = {}
    for name, value in arguments.items():
        found[name] = _read(value) if isinstance(value, str) and name.rpartition("_")[2] not in TEXTS else value
        default = known.get(name)
        is_number = isinstance(default, int | float) and not isinstance(default, bool)
        if is_number and name not in LISTS and not isinstance(found[name], int | float | None):
            raise ConfigError(f"{name} = {value!r}: must be a number, as in {name}: {default}")
    return found


def _read(text: str) -> Any:
    if (switch := {"true": True, "false": False}.get(text.strip().lower())) is not None:
        return switch
    for kind in (int, float):
        try:
            number = kind(text)
        except ValueError:
            continue
        return number if math.isfinite(number) else text
    return text
