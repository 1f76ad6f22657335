"""Components of published plugins, and options of the core that they implement, for errors about missing plugins.

The names are data (`published.json`, written at each release), so the code of the core names no plugin.
"""

from __future__ import annotations

import functools
import json
from pathlib import Path

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


@functools.cache
def published(kind: str) -> dict[str, Published]:
    """Return the published components of a kind (such as `trainers`) by short name, or `options` by dotted path."""
    table = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))
    return {
        name: Published(entry["dist"], tuple(entry.get("default_for", ())))
        for name, entry in table.get(kind, {}).items()
    }
