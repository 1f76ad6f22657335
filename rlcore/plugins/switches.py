"""The environment variables that select plugins, and those that hold the section `plugins` of a run's configuration.

During a run, the section is stored in two variables of its own. Every process that the run starts inherits it, and the
variables that a user set are unchanged. Discovery is cached by the values of all these variables, so that two runs in
one process each use their own section.
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
    """The variables that hold the lists of disabled and of enabled plugins, and the names of both in messages."""

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
    """Return whether a variable has a value other than 0, false, no or the empty string."""
    return environ.get(switch, "").strip().lower() not in {"", "0", "false", "no"}


def plugins_in(environ: Mapping[str, str], switch: str) -> set[str]:
    """Return the plugins that a variable lists."""
    return {normalise(name.strip()) for name in environ.get(switch, "").split(",") if name.strip()}


def disabled_reason(names: Collection[str], environ: Mapping[str, str]) -> str:
    """Return why the plugin with these names is disabled; an empty string if it is enabled."""
    for source in _SOURCES:
        if plugins_in(environ, source.disable) & set(names):
            return f"{source.disable_shown} names it"
        if source.only in environ and not plugins_in(environ, source.only) & set(names):
            return f"{source.only_shown} does not name it"
    return ""


def selection(environ: Mapping[str, str]) -> tuple[str | None, ...]:
    """Return the values of all variables that select plugins, as a cache key."""
    return tuple(environ.get(name) for name in _LISTS)


@contextmanager
def configured(disable: Collection[str], only: Collection[str] | None) -> Iterator[None]:
    """Apply the section `plugins` of a configuration within the context, to this process and those it starts.

    It replaces the section of an enclosing run, for example if a reward function starts a run.
    """
    previous = {name: os.environ.get(name) for name in (_CONFIGURED.disable, _CONFIGURED.only)}
    _put(_CONFIGURED.disable, ",".join(disable) or None)
    _put(_CONFIGURED.only, None if only is None else ",".join(only))
    try:
        yield
    finally:
        for name, value in previous.items():
            _put(name, value)


def _put(name: str, value: str | None) -> None:
    if value is None:
        os.environ.pop(name, None)
    else:
        os.environ[name] = value


def remark_on_switches(known: Collection[str], environ: Mapping[str, str]) -> list[str]:
    """Return notes on listed names that are not installed, which would otherwise have no visible effect."""
    notes = []
    for source in _SOURCES:
        for switch, shown in ((source.disable, source.disable_shown), (source.only, source.only_shown)):
            for name in sorted(plugins_in(environ, switch) - set(known)):
                near = difflib.get_close_matches(name, sorted(known), n=1)
                notes.append(f"{shown} names '{name}', which is not installed" + (f"; '{near[0]}' is" if near else ""))
        if CORE in plugins_in(environ, source.disable):
            notes.append(f"{source.disable_shown} names '{CORE}', but the core cannot be disabled")
    return notes
