"""Packages that a dist requires, with their installed versions, from metadata; nothing is imported."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import Distribution

import attrs
from packaging.requirements import InvalidRequirement, Requirement
from packaging.version import InvalidVersion

from rlcore.plugins.metadata import installed_dist


@attrs.frozen
class Package:
    """A package that a dist requires, and its installed version.

    Attributes:
        name: name of the package.
        required: required versions, such as `>=2.6`; empty if any version fits.
        installed: installed version; None if the package is not installed.
        extra: the extra of the dist that requires it; empty if the dist always does.
        fits: whether the package is installed in a required version.
    """

    name: str
    required: str
    installed: str | None
    extra: str
    fits: bool

    @property
    def complaint(self) -> str:
        """The problem, as a text that follows the dist's name; empty if there is none."""
        if self.fits or (self.extra and self.installed is None):
            return ""
        requirement = f"{self.name}{self.required}"
        state = "it is not installed" if self.installed is None else f"{self.name} {self.installed} is installed"
        return f"needs {requirement}, and {state}: pip install '{requirement}'"


def installed_version(name: str) -> str | None:
    """Return the version of an installed dist, `?` if it has none, or None if there is no such dist."""
    dist = installed_dist(name)
    try:
        return None if dist is None else str((dist.metadata.get_all("Version") or ["?"])[0])
    except (ValueError, OSError):  # unreadable metadata
        return "?"


def requirements(dist: Distribution, *, skip: tuple[str, ...] = ()) -> Iterator[Package]:
    """Yield the requirements of `dist` on this machine, those of extras last; the extras in `skip` are ignored."""
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
    """Parse a requirement; None if it is invalid, which discovery reports for plugins."""
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
