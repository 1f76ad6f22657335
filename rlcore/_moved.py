"""Old names of modules that have moved: importing one still works, with a `DeprecationWarning`.

The names are data (`moved.json`), so that the code of the core names no plugin.
"""

from __future__ import annotations

import importlib
import os
import sys
import warnings
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

_TABLE = os.path.join(os.path.dirname(__file__), "moved.json")  # noqa: PTH118, PTH120  see below
# Read without json and pathlib: modules of the working folder would shadow them until `rlcore.__main__` begins.
with open(_TABLE, encoding="utf-8") as _lines:  # noqa: PTH123
    MOVED: dict[str, str] = {parts[1]: parts[3] for line in _lines if len(parts := line.split('"')) == 5}
"""Old name of a module or package of the core → its new name; modules inside a package move with it.

A name in a module is written `module:name`.
"""


def new_name(name: str) -> str | None:
    """Return the present name of a module that has moved, None if it has not."""
    parts = name.split(".")
    for end in range(len(parts), 1, -1):
        if (moved := MOVED.get(".".join(parts[:end]))) is not None:
            return ".".join([moved, *parts[end:]])
    return None


class _Finder:
    """Finds modules by their old names; the entry of `sys.modules` is the module with the new name."""

    def find_spec(self, name: str, *_: Any) -> ModuleSpec | None:
        """Return a spec for the old name of a module, None for any other name."""
        if not name.startswith("rlcore.") or new_name(name) is None:
            return None
        return ModuleSpec(name, self)  # type: ignore[arg-type]  # the two methods that importlib calls are here

    def create_module(self, spec: ModuleSpec) -> None:
        """Leave it to importlib to create a module, which `exec_module` replaces."""

    def exec_module(self, module: ModuleType) -> None:
        """Import the module by its new name and put it in the place of `module`.

        Raises:
            ModuleNotFoundError: the package that it has moved to is not installed.
        """
        old, new = module.__name__, str(new_name(module.__name__))
        sys.modules[old] = _import(old, new)
        warnings.warn(f"{old} has moved: import {new}", DeprecationWarning, stacklevel=2)


def _import(old: str, new: str) -> ModuleType:
    try:
        return importlib.import_module(new)
    except ModuleNotFoundError as error:
        package = new.partition(".")[0]
        if error.name != package:
            raise
        message = f"{old} has moved to {new}: pip install {package.replace('_', '-')}"
        raise ModuleNotFoundError(message, name=package) from None


def moved_names(module: str) -> Callable[[str], Any]:
    """Return `__getattr__` of a module, which finds the names that have moved from it to another module."""

    def load(name: str) -> Any:
        old = f"{module}:{name}"
        if old not in MOVED:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        place, _, attribute = MOVED[old].partition(":")
        warnings.warn(f"{module}.{name} has moved: import it from {place}", DeprecationWarning, stacklevel=2)
        return getattr(_import(old, place), attribute)

    return load


def install() -> None:
    """Let imports by old names succeed in this process."""
    sys.meta_path.insert(0, _Finder())  # before the finder of files, which would load it twice
