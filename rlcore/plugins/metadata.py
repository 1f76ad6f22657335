"""Plugins in the metadata of installed dists; nothing is imported.

Also in this file: the environment variables that select plugins, and those that hold the section `plugins` of a run's
configuration.
"""

from __future__ import annotations

import difflib
import json
import os
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from importlib.metadata import Distribution, EntryPoint, distributions
from pathlib import Path
from urllib.parse import unquote, urlsplit

import attrs

from rlcore.components import describe_error, normalise

GROUP = "rlcore"
CORE = "rlcore"
_CORE_MODULE = "rlcore.plugins.builtin"


@attrs.frozen
class InstalledPlugin:
    """One entry point of the group in the metadata of a dist; `problem` describes invalid metadata."""

    dist: str
    version: str
    name: str
    module: str
    requires: tuple[str, ...] = ()
    problem: str = ""

    @property
    def names(self) -> set[str]:
        """The names that environment variables may use for it: those of the dist and the entry point."""
        return {self.dist, normalise(self.name)}


@attrs.frozen
class InstalledPlugins:
    """All entry points of the group, and notes on dists that are installed more than once."""

    plugins: tuple[InstalledPlugin, ...]
    notes: tuple[str, ...]


def find_plugins(path: Sequence[str] | None = None) -> InstalledPlugins:
    """Return the entry points of the group, the core's first, then by dist and name.

    Of several copies of a dist, the first on the path is used, as for imports.
    """
    folders = search_path() if path is None else list(path)
    plugins: dict[tuple[str, str], InstalledPlugin] = {}
    notes: list[str] = []
    for dist in _with_plugins(folders, notes):
        for candidate in _read(dist):
            plugins.setdefault((candidate.dist, candidate.name), candidate)
    if not any(candidate.module == _CORE_MODULE and not candidate.problem for candidate in plugins.values()):
        from rlcore._version import __version__

        plugins[CORE, "core"] = InstalledPlugin(CORE, __version__, "core", _CORE_MODULE)
    order = sorted(plugins.values(), key=lambda candidate: (candidate.dist != CORE, candidate.dist, candidate.name))
    return InstalledPlugins(tuple(order), tuple(sorted(notes)))


def search_path() -> list[str]:
    """Return `sys.path` without the working folder, which `python -c` and `python -m` prepend."""
    first = sys.path[0] if sys.path else None
    if first is not None and not sys.flags.safe_path and first in {"", str(Path.cwd())}:
        return sys.path[1:]
    return list(sys.path)


def _with_plugins(folders: list[str], notes: list[str]) -> Iterator[Distribution]:
    """Yield every dist with entry points of the group: the copy that Python would import."""
    seen: set[str] = set()
    for dist in distributions(path=folders):
        try:
            if not _has_group(dist):
                continue
            name = _name(dist)
            if name in seen:
                continue
            copies = _copies(name, folders) or [dist]
            if len(copies) > 1:
                notes.append(_describe_copies(name, copies))
        except Exception:  # noqa: BLE001  # third-party metadata; `_read` reports the error
            yield dist
            continue
        seen.add(name)
        if _has_group(copies[0]):
            yield copies[0]


def _has_group(dist: Distribution) -> bool:
    return f"[{GROUP}]" in (dist.read_text("entry_points.txt") or "").replace(" ", "")


def _name(dist: Distribution) -> str:
    names = dist.metadata.get_all("Name")
    if not names:
        raise ValueError("it has no name")
    return normalise(names[0])


def version_of(dist: Distribution) -> str:
    """Return the version of a dist, `?` if its metadata has none.

    Raises:
        ValueError, OSError: its metadata cannot be read.
    """
    return str((dist.metadata.get_all("Version") or ["?"])[0])


def _copies(name: str, folders: list[str]) -> list[Distribution]:
    """Return the installed copies of a dist in the order of the path; duplicate folders count once."""
    copies: dict[Path, Distribution] = {}
    for dist in distributions(name=name, path=folders):
        copies.setdefault(_metadata_folder(dist).resolve(), dist)
    sources = [source for dist in copies.values() if (source := _editable_source(dist))]
    # A build of an editable install leaves metadata next to its code, which belongs to the same install.
    return [
        dist
        for folder, dist in copies.items()
        if folder.suffix != ".egg-info" or not any(folder.is_relative_to(source) for source in sources)
    ]


def _editable_source(dist: Distribution) -> Path | None:
    """Return the code folder of an editable install; None for other dists."""
    try:
        record = json.loads(dist.read_text("direct_url.json") or "{}")
        return Path(unquote(urlsplit(record["url"]).path)).resolve() if record["dir_info"]["editable"] else None
    except (ValueError, LookupError, TypeError):  # an unreadable record is treated like a missing one
        return None


def _describe_copies(name: str, copies: Sequence[Distribution]) -> str:
    used, *others = (f"{version_of(copy)} in {_metadata_folder(copy).parent}" for copy in copies)
    return f"{name} is installed {len(copies)} times: {used} is used, {' and '.join(others)} is not"


def _read(dist: Distribution) -> Iterator[InstalledPlugin]:
    """Yield the entry points of one dist; unreadable metadata yields one entry with a problem."""
    name, version = "", "?"
    try:
        name, version = _name(dist), version_of(dist)
        points = [(point.name, point.value) for point in dist.entry_points if point.group == GROUP]
        requires = tuple(dist.requires or ())
    except Exception as error:  # noqa: BLE001  # third-party metadata may be invalid in any way
        label = name or normalise(_metadata_folder(dist).name.partition("-")[0])
        reason = describe_error(error)
        yield InstalledPlugin(label, version, "?", "?", problem=f"its metadata cannot be read: {reason}")
        return
    for point, value in points:
        module = value.partition("[")[0]  # without extras, which the specification requires readers to ignore
        yield _check(InstalledPlugin(name, version, point, module.replace(" ", ""), requires))


def _check(plugin: InstalledPlugin) -> InstalledPlugin:
    if EntryPoint.pattern.match(plugin.module):
        return plugin
    return attrs.evolve(plugin, problem=f"its entry point '{plugin.name}' names no module: {plugin.module!r}")


def _metadata_folder(dist: Distribution) -> Path:
    """Return the folder of a dist's metadata, whose name identifies the dist if the metadata has no name."""
    return Path(str(getattr(dist, "_path", "unknown")))


def installed_dist(name: str) -> Distribution | None:
    """Return the metadata of the first dist of this name on the path, without the working folder."""
    return next(iter(distributions(name=name, path=search_path())), None)


@cache
def installed_version(name: str) -> str | None:
    """Return the version of the first dist of this name that Python would import; None if there is none."""
    try:
        dist = installed_dist(name)
        return None if dist is None else version_of(dist)
    except (ValueError, OSError):  # unreadable metadata
        return None


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
