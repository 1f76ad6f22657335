"""Run options passed to a benchmark program as `--set section.option=value`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import yaml


def nested(options: Sequence[str]) -> dict[str, Any]:
    """Return `section.option=value` strings as nested mappings; values are YAML."""
    sections: dict[str, Any] = {}
    for each in options:
        path, _, value = each.partition("=")
        *parents, name = path.split(".")
        section = sections
        for parent in parents:
            section = section.setdefault(parent, {})
        section[name] = yaml.safe_load(value)
    return sections


def merged(options: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return `options` merged with `changes`, section by section."""
    return {
        name: merged(options.get(name) or {}, changes[name])
        if isinstance(changes.get(name), Mapping)
        else changes.get(name, options.get(name))
        for name in options.keys() | changes.keys()
    }
