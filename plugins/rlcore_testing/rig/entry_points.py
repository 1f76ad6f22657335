"""The objects that entry points name, and the hooks that these implement."""

from __future__ import annotations

import importlib
from typing import Any

import pluggy

from rlcore.hookspecs import PROJECT


def resolve(reference: str) -> Any:
    """Return the module, or its attribute, that the value of an entry point names."""
    module, _, attribute = reference.partition(":")
    found: Any = importlib.import_module(module)
    for part in filter(None, attribute.split(".")):
        found = getattr(found, part)
    return found


def hooks_of(reference: str) -> list[str]:
    """Return the names of the hooks that an entry point's object implements."""
    plugin, known = resolve(reference), pluggy.PluginManager(PROJECT)
    return [name for name in dir(plugin) if known.parse_hookimpl_opts(plugin, name) is not None]
