"""Read the switches, which are environment variables.

RLCORE_DISABLE_PLUGINS=a,b   leave these out, by dist or entry point
RLCORE_PLUGINS=a,b           load these only; empty loads none; the core itself always stays
RLCORE_STRICT_PLUGINS=1      any plugin that is incompatible, broken or in conflict is an error
RLCORE_TRACE_PLUGINS=1       tell on stderr what is loaded, in how much time, and every hook call
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Mapping

from rlcore.components import normalise
from rlcore.finding import CORE


def is_on(environ: Mapping[str, str], switch: str) -> bool:
    """Tell whether a switch is set to anything but nothing, 0, false or no."""
    return environ.get(switch, "").strip().lower() not in {"", "0", "false", "no"}


def listed(environ: Mapping[str, str], switch: str) -> set[str]:
    """Return the plugins that a switch names."""
    return {normalise(name.strip()) for name in environ.get(switch, "").split(",") if name.strip()}


def remark_on_switches(known: Collection[str], environ: Mapping[str, str]) -> list[str]:
    """Remark on names in the switches that stand for nothing, which would otherwise be obeyed in silence."""
    notes = []
    for switch in ("RLCORE_DISABLE_PLUGINS", "RLCORE_PLUGINS"):
        for name in sorted(listed(environ, switch) - set(known)):
            near = difflib.get_close_matches(name, sorted(known), n=1)
            notes.append(f"{switch} names '{name}', which is not installed" + (f"; '{near[0]}' is" if near else ""))
    if CORE in listed(environ, "RLCORE_DISABLE_PLUGINS"):
        notes.append("RLCORE_DISABLE_PLUGINS names 'rlcore', but the core itself always stays")
    return notes
