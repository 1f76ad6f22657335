"""Faces of packages: names that are imported from their modules on first use (PEP 562)."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any


def lazy(
    package: str, names: Sequence[str], homes: Mapping[str, Sequence[str]]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return `__getattr__` and `__dir__` of a package, so that importing it imports none of `homes`.

    Args:
        package: its name, for errors.
        names: everything it offers, its `__all__`.
        homes: by module, the names that are imported from it.
    """
    home_of = {name: module for module, held in homes.items() for name in held}

    def load(name: str) -> Any:
        if name in home_of:
            return getattr(importlib.import_module(home_of[name]), name)
        raise AttributeError(f"module '{package}' has no attribute '{name}'")

    return load, lambda: sorted(names)
