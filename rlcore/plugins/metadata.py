"""Find plugins in the metadata of installed dists, without importing any."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from importlib.metadata import Distribution, EntryPoint, distributions
from pathlib import Path
from urllib.parse import unquote, urlsplit

import attrs
from packaging.requirements import InvalidRequirement, Requirement
from packaging.version import InvalidVersion

from rlcore.components import describe_error, normalise

GROUP = "rlcore"
CORE = "rlcore"
_CORE_MODULE = "rlcore.plugins.builtin"


@attrs.frozen
class InstalledPlugin:
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


@attrs.frozen
class InstalledPlugins:
    """Hold every entry point found, and notes on dists that lie on the path more than once."""

    plugins: tuple[InstalledPlugin, ...]
    notes: tuple[str, ...]


def find_plugins(path: Sequence[str] | None = None) -> InstalledPlugins:
    """List the entry points of the group, the core's first, then by dist and name.

    A dist that `path` holds several times counts once, as the first of them, as it does for imports.
    """
    folders = search_path() if path is None else list(path)
    found: dict[tuple[str, str], InstalledPlugin] = {}
    notes: list[str] = []
    for dist in _with_plugins(folders, notes):
        for candidate in _read(dist):
            found.setdefault((candidate.dist, candidate.name), candidate)
    if not any(candidate.module == _CORE_MODULE and not candidate.problem for candidate in found.values()):
        from rlcore._version import __version__

        found[CORE, "core"] = InstalledPlugin(CORE, __version__, "core", _CORE_MODULE)
    order = sorted(found.values(), key=lambda candidate: (candidate.dist != CORE, candidate.dist, candidate.name))
    return InstalledPlugins(tuple(order), tuple(sorted(notes)))


def search_path() -> list[str]:
    """Return `sys.path` without the working folder that `python -c` and `python -m` put before it."""
    own = sys.path[0] if sys.path else None
    if own is not None and not sys.flags.safe_path and own in {"", str(Path.cwd())}:
        return sys.path[1:]
    return list(sys.path)


def _with_plugins(folders: list[str], notes: list[str]) -> Iterator[Distribution]:
    """Yield, of every dist that has entry points of the group somewhere on the path, the copy that counts."""
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
        except Exception:  # noqa: BLE001  # metadata is a stranger's too; reading it again says what is wrong with it
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
        raise ValueError("it says no name")
    return normalise(names[0])


def version_of(dist: Distribution) -> str:
    """Return a dist's version, `?` where its metadata says none.

    Raises:
        ValueError, OSError: its metadata cannot be read.
    """
    return str((dist.metadata.get_all("Version") or ["?"])[0])


def _copies(name: str, folders: list[str]) -> list[Distribution]:
    """List the installed copies of a dist, the one that counts first; a folder listed twice holds one copy."""
    places: dict[Path, Distribution] = {}
    for dist in distributions(name=name, path=folders):
        places.setdefault(_place(dist).resolve(), dist)
    sources = [source for dist in places.values() if (source := _editable_source(dist))]
    # The metadata that a build leaves beside the code of an editable install is of that same install.
    return [
        dist
        for place, dist in places.items()
        if place.suffix != ".egg-info" or not any(place.is_relative_to(source) for source in sources)
    ]


def _editable_source(dist: Distribution) -> Path | None:
    """Return the folder of code that an editable install stands for; None for another dist."""
    try:
        record = json.loads(dist.read_text("direct_url.json") or "{}")
        return Path(unquote(urlsplit(record["url"]).path)).resolve() if record["dir_info"]["editable"] else None
    except (ValueError, LookupError, TypeError):  # a record that cannot be read says nothing, as an absent one
        return None


def _describe_copies(name: str, copies: Sequence[Distribution]) -> str:
    used, *others = (f"{version_of(copy)} in {_place(copy).parent}" for copy in copies)
    return f"{name} lies on the path in {len(copies)} places: {used} is used, {' and '.join(others)} is not"


def _read(dist: Distribution) -> Iterator[InstalledPlugin]:
    """Yield the entry points of one dist; a dist whose metadata cannot be read yields its problem."""
    name, version = "", "?"
    try:
        name, version = _name(dist), version_of(dist)
        points = [(point.name, point.value) for point in dist.entry_points if point.group == GROUP]
        requires = tuple(dist.requires or ())
    except Exception as error:  # noqa: BLE001  # metadata is a stranger's too, and readable is all we ask of it
        label = name or normalise(_place(dist).name.partition("-")[0])
        what = describe_error(error)
        yield InstalledPlugin(label, version, "?", "?", problem=f"its metadata cannot be read: {what}")
        return
    for point, value in points:
        module = value.partition("[")[0]  # extras may stand behind it, which the specification has readers ignore
        yield _check(InstalledPlugin(name, version, point, module.replace(" ", ""), requires))


def _check(found: InstalledPlugin) -> InstalledPlugin:
    if EntryPoint.pattern.match(found.module):
        return found
    return attrs.evolve(found, problem=f"its entry point '{found.name}' names no module: {found.module!r}")


def _place(dist: Distribution) -> Path:
    """Return the folder of a dist's metadata, after which it is named where the metadata itself says nothing."""
    return Path(str(getattr(dist, "_path", "unknown")))


@attrs.frozen
class Package:
    """Hold one requirement of a dist, and what is installed for it.

    Attributes:
        name: the package that is required.
        required: the versions that will do, such as `>=2.6`; empty where any will.
        installed: its version, None where it is not installed.
        extra: the extra of the dist that asks for it, empty where the dist always does.
        fits: whether the installed version will do; False where there is none.
    """

    name: str
    required: str
    installed: str | None
    extra: str
    fits: bool

    @property
    def complaint(self) -> str:
        """Say what is wrong with it, in words that go behind its dist's name; empty where nothing is."""
        if self.fits or (self.extra and self.installed is None):
            return ""
        wanted = f"{self.name}{self.required}"
        seen = "it is not installed" if self.installed is None else f"{self.name} {self.installed} is installed"
        return f"needs {wanted}, and {seen}: pip install '{wanted}'"


def installed_dist(name: str) -> Distribution | None:
    """Return the metadata of the dist that an import would find first, not looking into the working folder."""
    return next(iter(distributions(name=name, path=search_path())), None)


def installed_version(name: str) -> str | None:
    """Return the version of an installed dist, `?` where it says none, None where there is no such dist."""
    dist = installed_dist(name)
    try:
        return None if dist is None else version_of(dist)
    except (ValueError, OSError):  # metadata that cannot be read says nothing
        return "?"


def requirements(dist: Distribution, *, skip: tuple[str, ...] = ()) -> Iterator[Package]:
    """Yield what `dist` requires here: first always, then by extra; the extras in `skip` are left out."""
    lines = [requirement for line in dist.requires or () if (requirement := _parse(line))]
    extras = [extra for extra in dist.metadata.get_all("Provides-Extra") or () if extra not in skip]
    always = [line for line in lines if line.marker is None or line.marker.evaluate({"extra": ""})]
    for line in always:
        yield _compare(line, "")
    for extra in extras:
        for line in lines:
            if line not in always and line.marker is not None and line.marker.evaluate({"extra": extra}):
                yield _compare(line, extra)


def _parse(line: str) -> Requirement | None:
    """Read a requirement; None for one that nobody could, which discovery reports where it matters."""
    try:
        return Requirement(line)
    except InvalidRequirement:
        return None


def _compare(requirement: Requirement, extra: str) -> Package:
    version = installed_version(requirement.name)
    try:
        fits = version is not None and requirement.specifier.contains(version, prereleases=True)
    except InvalidVersion:
        fits = False
    required = ",".join(sorted(str(requirement.specifier).split(","), reverse=True))  # >=5,<6 reads better than <6,>=5
    return Package(requirement.name, required, version, extra, fits)
