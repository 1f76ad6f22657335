"""What the tests of `rlcore convert` share: a trainer's options, and a configuration as dotted names."""

from __future__ import annotations

from typing import Any

from rlcore.plugins.registry import all_registries


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
