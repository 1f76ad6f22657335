"""Write a page for every public module, with the names that `tests/test_public_api.py` records and no others."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
from pathlib import Path
from types import ModuleType
from typing import Any

from website.addresses import ROOT

INTRODUCTION = """\
# API

The public modules, with what their docstrings say. What is not listed here is private and changes without notice
([compatibility](../compatibility.md)). Most programs need {mod}`rlcore` alone; for plugins, [Plugins](../plugins.md)
says which modules matter.

"""


def write(folder: Path) -> None:
    """Write the pages of all public modules and their index."""
    public = _public_api()
    folder.mkdir()
    rows = [f"| {{mod}}`{name}` | {_lead(importlib.import_module(name))} |" for name in public.MODULES]
    toctree = ["", "```{toctree}", ":hidden:", "", *public.MODULES, "```", ""]
    index = INTRODUCTION + "\n".join(["| module | contents |", "|---|---|", *rows, *toctree])
    (folder / "index.md").write_text(index, encoding="utf-8")
    for name in public.MODULES:
        (folder / f"{name}.rst").write_text(_page(name, public), encoding="utf-8")


def _public_api() -> ModuleType:
    """Return the module that records the public API."""
    path = ROOT / "tests/test_public_api.py"
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} cannot be imported")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _page(name: str, public: ModuleType) -> str:
    module = importlib.import_module(name)
    lines = [name, "=" * len(name), "", f".. automodule:: {name}", ""]
    for each in public.public_names(module):
        lines += [*_entry(name, each, getattr(module, each), public), ""]
    return "\n".join(lines)


def _entry(module: str, name: str, value: Any, public: ModuleType) -> list[str]:
    """Return the directive of a name; of one that another public module defines, a link to it."""
    defined = inspect.isclass(value) or public.is_dispatched(value)
    home = public.public_home(value) if defined else None
    if home not in {None, module}:
        role = "class" if inspect.isclass(value) else "func"
        return [f"``{name}`` is :{role}:`{home}.{value.__qualname__}`."]
    if inspect.isclass(value):
        bases = ["   :show-inheritance:"] if value.__bases__ != (object,) else []
        return [f".. autoclass:: {module}.{name}", "   :members:", *bases, *_inherited(value, public)]
    if defined:
        return [f".. autofunction:: {module}.{name}"]
    return [f".. autodata:: {module}.{name}", "   :no-value:"]


def _inherited(value: type, public: ModuleType) -> list[str]:
    """Return the option that shows what a class inherits from classes that no public module offers."""
    own = public.own_classes(value)
    others = [base for base in value.__mro__ if base not in own]
    return [f"   :inherited-members: {', '.join(sorted({base.__name__ for base in others}))}"] if len(own) > 1 else []


def _lead(module: ModuleType) -> str:
    return (module.__doc__ or "").strip().partition("\n")[0].replace("|", "\\|")
