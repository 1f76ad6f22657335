"""Find plugins in the metadata of installed dists, without importing any."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from importlib.metadata import Distribution, EntryPoint, distributions
from pathlib import Path

import attrs

from rlcore.components import normalise

GROUP = "rlcore"
CORE = "rlcore"
_CORE_MODULE = "rlcore.plugin"


@attrs.frozen
class Found:
    """Hold one entry point of the group, as metadata has it; `problem` says what is wrong with the metadata."""

    dist: str
    version: str
    name: str
    module: str
    requires: tuple[str, ...] = ()
    problem: str = ""

    @property
    def names(self) -> set[str]:
        """Give the names a switch may call it by: its dist's, its entry point's."""
        return {self.dist, normalise(self.name)}


def find_plugins(path: Sequence[str] | None = None) -> list[Found]:
    """List the entry points of the group, the core's first, then by dist and name.

    A dist that `path` holds several times counts once, as the first of them.
    """
    folders = search_path() if path is None else list(path)
    found: dict[tuple[str, str], Found] = {}
    seen: set[str] = set()
    for dist in distributions(path=folders):
        for candidate in _read(dist, folders, seen):
            found.setdefault((candidate.dist, candidate.name), candidate)
    if not any(candidate.module == _CORE_MODULE and not candidate.problem for candidate in found.values()):
        from rlcore import __version__

        found[CORE, "core"] = Found(CORE, __version__, "core", _CORE_MODULE)
    return sorted(found.values(), key=lambda candidate: (candidate.dist != CORE, candidate.dist, candidate.name))


def search_path() -> list[str]:
    """Return `sys.path` without the working folder that `python -c` and `python -m` put before it."""
    own = sys.path[0] if sys.path else None
    if own is not None and not sys.flags.safe_path and own in {"", str(Path.cwd())}:
        return sys.path[1:]
    return list(sys.path)


def _read(dist: Distribution, folders: list[str], seen: set[str]) -> Iterator[Found]:
    """Yield the entry points of one dist; a dist whose metadata cannot be read yields its problem."""
    name, version = "", "?"
    try:
        text = dist.read_text("entry_points.txt") or ""
        if f"[{GROUP}]" not in text.replace(" ", ""):
            return
        name, version = normalise(dist.metadata["Name"]), dist.metadata["Version"]
        first = next(iter(distributions(name=name, path=folders)), dist)
        if name in seen or first.read_text("entry_points.txt") != text or first.version != version:
            return
        seen.add(name)
        points = [(point.name, point.value) for point in dist.entry_points if point.group == GROUP]
        requires = tuple(dist.requires or ())
    except Exception as error:  # noqa: BLE001  # metadata is a stranger's too, and readable is all we ask of it
        label = name or _folder_name(dist)
        yield Found(label, version, "?", "?", problem=f"its metadata cannot be read: {type(error).__name__}: {error}")
        return
    for point, value in points:
        yield _check(Found(name, version, point, value.replace(" ", ""), requires))


def _check(found: Found) -> Found:
    if EntryPoint.pattern.match(found.module):
        return found
    return attrs.evolve(found, problem=f"its entry point '{found.name}' names no module: {found.module!r}")


def _folder_name(dist: Distribution) -> str:
    """Name a dist after its metadata's folder, where the metadata itself says nothing."""
    return normalise(Path(str(getattr(dist, "_path", "unknown"))).name.partition("-")[0])
