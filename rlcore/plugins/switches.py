"""Read the environment variables that say which plugins take part, and those a run's configuration is kept in.

The section `plugins` of a run's configuration lies in two variables of its own for as long as the run goes on. So it is
obeyed in every process the run starts, forked or spawned, whatever that process asks first, and without touching the
switches a user set; and as discovery is memoised by what all of them say, two runs in one process see each its own.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager

import attrs

from rlcore.components import normalise
from rlcore.plugins.metadata import CORE


@attrs.frozen
class _Source:
    """Hold where two lists of plugins are kept, those left out and those let in, and how a reader knows them."""

    disable: str
    only: str
    disable_shown: str
    only_shown: str


_CONFIGURED = _Source(
    "RLCORE_CONFIG_DISABLE_PLUGINS", "RLCORE_CONFIG_PLUGINS",
    "plugins.disable in the configuration", "plugins.only in the configuration",
)  # fmt: skip
_SOURCES = (
    _Source("RLCORE_DISABLE_PLUGINS", "RLCORE_PLUGINS", "RLCORE_DISABLE_PLUGINS", "RLCORE_PLUGINS"),
    _CONFIGURED,
)
_LISTS = tuple(name for source in _SOURCES for name in (source.disable, source.only))


def is_on(environ: Mapping[str, str], switch: str) -> bool:
    """Tell whether a switch is set to anything but nothing, 0, false or no."""
    return environ.get(switch, "").strip().lower() not in {"", "0", "false", "no"}


def plugins_in(environ: Mapping[str, str], switch: str) -> set[str]:
    """Return the plugins that a switch names."""
    return {normalise(name.strip()) for name in environ.get(switch, "").split(",") if name.strip()}


def disabled_reason(names: Collection[str], environ: Mapping[str, str]) -> str:
    """Say why a plugin that goes by `names` is left out; nothing if it takes part."""
    for source in _SOURCES:
        if plugins_in(environ, source.disable) & set(names):
            return f"{source.disable_shown} names it"
        if source.only in environ and not plugins_in(environ, source.only) & set(names):
            return f"{source.only_shown} does not name it"
    return ""


def selection(environ: Mapping[str, str]) -> tuple[str | None, ...]:
    """Return all that decides which plugins take part, to tell one selection from another."""
    return tuple(environ.get(name) for name in _LISTS)


@contextmanager
def configured(disable: Collection[str], only: Collection[str] | None) -> Iterator[None]:
    """Let the section `plugins` of a configuration hold in the block, for this process and those it starts.

    It takes the place of another run's section that holds already, as for a run that a worker of that run starts.
    """
    kept = {name: os.environ.get(name) for name in (_CONFIGURED.disable, _CONFIGURED.only)}
    _put(_CONFIGURED.disable, ",".join(disable) or None)
    _put(_CONFIGURED.only, None if only is None else ",".join(only))
    try:
        yield
    finally:
        for name, value in kept.items():
            _put(name, value)


def _put(name: str, value: str | None) -> None:
    if value is None:
        os.environ.pop(name, None)
    else:
        os.environ[name] = value


def remark_on_switches(known: Collection[str], environ: Mapping[str, str]) -> list[str]:
    """Remark on names in the lists that stand for nothing, which would otherwise be obeyed in silence."""
    notes = []
    for source in _SOURCES:
        for switch, shown in ((source.disable, source.disable_shown), (source.only, source.only_shown)):
            for name in sorted(plugins_in(environ, switch) - set(known)):
                near = difflib.get_close_matches(name, sorted(known), n=1)
                notes.append(f"{shown} names '{name}', which is not installed" + (f"; '{near[0]}' is" if near else ""))
        if CORE in plugins_in(environ, source.disable):
            notes.append(f"{source.disable_shown} names '{CORE}', but the core itself always stays")
    return notes
