"""Generate the table of modules that have moved to a package or to another file of the core."""

from __future__ import annotations

from rlcore._moved import MOVED

INTRODUCTION = """\
# Modules that have moved

Generated from `rlcore/moved.json` by `make docs`.

Modules of the core that have become parts of a package, or of another file of the core. An import of an old name still
works: it imports the new module, with a `DeprecationWarning`, or raises a `ModuleNotFoundError` with the command that
installs the package. The same holds for names in a module. Modules inside a folder have moved with it.
[Compatibility](compatibility.md#what-has-moved) describes what else keeps its old name.

| old name | new name |
|---|---|
"""


def pages() -> dict[str, str]:
    """Return a mapping from the page's path to its text."""
    rows = [f"| `{old.replace(':', '.')}` | `{new.replace(':', '.')}` |" for old, new in sorted(MOVED.items())]
    return {"moved.md": INTRODUCTION + "\n".join([*rows, ""])}
