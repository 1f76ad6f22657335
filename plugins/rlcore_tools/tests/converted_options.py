"""What the tests of `rlcore convert` share: a trainer's options, and a configuration as dotted names."""

from __future__ import annotations

import dataclasses
from typing import Any

from transformers import TrainingArguments

from rlcore.plugins.registry import all_registries
from rlcore_tools.conversion.trl_arguments import NAMES, RENAMED, ROWS, kinds_of


def options_of(trainer: str) -> type:
    found = all_registries().trainers.get(trainer).config_class()
    assert found is not None
    return found


def flat(values: Any, path: str = "") -> dict[str, Any]:
    if not isinstance(values, dict):
        return {path: values}
    return {
        key: each for name, part in values.items() for key, each in flat(part, f"{path}.{name}".lstrip(".")).items()
    }


def example_of(name: str) -> Any:
    """Return a value of the type of an argument of TRL that is not its default."""
    name = RENAMED.get(name, name)
    defaults = {field.name: field.default for field in dataclasses.fields(TrainingArguments)}
    kinds = kinds_of(name, defaults.get(name))
    if name in NAMES or kinds == (str,):
        return "seven"
    if name in ROWS:
        return ["seven"]
    return defaults.get(name) is not True if bool in kinds else 7
