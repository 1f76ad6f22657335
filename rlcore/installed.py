"""Compare what is installed with what metadata asks for, importing none of it."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import Distribution, distributions

import attrs
from packaging.requirements import InvalidRequirement, Requirement
from packaging.version import InvalidVersion

from rlcore.finding import search_path, version_of


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
