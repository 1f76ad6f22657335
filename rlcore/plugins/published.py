"""Components of published plugins, and options of the core that they implement, for errors about missing plugins.

The names are data (`published.json`, written at each release), so the code of the core names no plugin.
"""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import attrs


@attrs.frozen
class Published:
    """A component of a published plugin, or an option of the core that the plugin implements.

    Attributes:
        dist: the dist of the plugin.
        default_for: for a trainer, the inputs for which it is the default.
    """

    dist: str
    default_for: tuple[str, ...] = ()


def how_to_install(dist: str) -> str:
    """Return the command that installs the dist of a published plugin, by name and from a clone of the repository."""
    table, needed = _table(), (*_table()["requires"].get(dist, ()), dist)
    folders = [table["folders"].get(each, f"plugins/{each.replace('-', '_')}") for each in needed]
    return f"pip install {dist} (in a clone of rlcore: pip install {' '.join(f'./{folder}' for folder in folders)})"


@functools.cache
def published(kind: str) -> dict[str, Published]:
    """Return the published components of a kind (such as `trainers`) by short name, or `options` by dotted path."""
    return {
        name: Published(entry["dist"], tuple(entry.get("default_for", ())))
        for name, entry in _table().get(kind, {}).items()
    }


@functools.cache
def _table() -> dict[str, Any]:
    table: dict[str, Any] = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))
    return table
