"""A virtual environment for a source tree: its own dists, built from the tree, and everything else shared.

Libraries such as torch are those of the running environment, linked and not copied. The dists of the compared trees are
left out of them, also those that only the other tree has, so that neither tree loads code of the other.
"""

from __future__ import annotations

import compileall
import subprocess
import sys
import tomllib
import venv
import zipfile
from collections.abc import Iterable, Sequence
from importlib.metadata import Distribution, distributions
from pathlib import Path

from build import BuildBackendException, BuildException, ProjectBuilder, check_dependency
from packaging.utils import canonicalize_name
from pyproject_hooks import quiet_subprocess_runner

from rlcore import RLCoreError

PLACES = ("pyproject.toml", "*/pyproject.toml", "plugins/*/pyproject.toml")
"""Where the dists of a tree are."""
LAST_LINES = 15


class TreeNotBuilt(RLCoreError, RuntimeError):
    """A source tree whose dists cannot be built, with the dist and the end of the output."""


def find_dists(tree: Path, *, label: str) -> dict[str, Path]:
    """Return the folders of a tree's dists by their names.

    Args:
        tree: the folder of the tree.
        label: the version's name, for errors.

    Raises:
        TreeNotBuilt: there is none, or a pyproject.toml is not valid.
    """
    found: dict[str, Path] = {}
    for file in (file for place in PLACES for file in sorted(tree.glob(place))):
        try:
            name = tomllib.loads(file.read_text(encoding="utf-8")).get("project", {}).get("name")
        except ValueError as error:
            raise TreeNotBuilt(f"{label}: {file.relative_to(tree)} is not valid TOML: {error}") from error
        if isinstance(name, str):
            found.setdefault(canonicalize_name(name), file.parent)
    if not found:
        raise TreeNotBuilt(f"{label}: has no dist to build: there is no project in {', '.join(PLACES)}")
    return found


def build_wheels(dists: Iterable[tuple[str, Path]], folder: Path, *, label: str) -> list[Path]:
    """Build a wheel of each dist with the build backend that its pyproject.toml names, without network.

    Args:
        dists: names and folders.
        folder: where the wheels go.
        label: the version's name, for errors.

    Raises:
        TreeNotBuilt: a dist does not build.
    """
    wheels = []
    for name, source in dists:
        try:
            builder = ProjectBuilder(source, runner=quiet_subprocess_runner)
            if lacking := sorted(each for each in builder.build_system_requires if any(check_dependency(each))):
                raise TreeNotBuilt(
                    f"{label}: {name} needs {', '.join(lacking)} to be built; pip install it in this environment"
                )
            wheels.append(Path(builder.build("wheel", folder)))
        except (BuildException, BuildBackendException) as error:
            raise TreeNotBuilt(f"{label}: {name} does not build: {_output(error)}") from error
    return wheels


def _output(error: BuildException | BuildBackendException) -> str:
    cause = getattr(error, "exception", None)
    if isinstance(cause, subprocess.CalledProcessError) and cause.output:
        output = cause.output.decode(errors="replace") if isinstance(cause.output, bytes) else str(cause.output)
        return "\n  ".join(["its backend said:", *output.strip().splitlines()[-LAST_LINES:]])
    return str(error)


def make_environment(folder: Path, wheels: Sequence[Path], *, without: Iterable[str]) -> str:
    """Make a virtual environment of wheels over the libraries of the running one, and return its interpreter.

    Args:
        folder: the new folder of the environment.
        wheels: wheels to install, without their dependencies.
        without: canonical names of dists that are not shared with the running environment.
    """
    venv.create(folder, symlinks=True)
    site = next(folder.glob("lib*/python*/site-packages"), folder / "Lib" / "site-packages")
    for wheel in wheels:
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(site)
    compileall.compile_dir(site, quiet=2)  # else the first run would pay for it
    shared = folder / "shared"
    shared.mkdir()
    link_libraries(shared, without=frozenset(without))
    (site / "shared.pth").write_text(f"{shared}\n", encoding="utf-8")
    return str(next(path for path in (folder / "bin" / "python", folder / "Scripts" / "python.exe") if path.exists()))


def link_libraries(folder: Path, *, without: frozenset[str]) -> None:
    """Link every top-level file and folder of the running environment's libraries, but for those of some dists."""
    places = [Path(place) for place in sys.path if Path(place).name in ("site-packages", "dist-packages")]
    left_out = {
        (place, name)
        for place in places
        for dist in distributions(path=[str(place)])
        if canonicalize_name(dist.name) in without or _is_editable(dist)
        for name in _top_level(dist)
    }
    for place in places:
        for path in place.iterdir() if place.is_dir() else ():
            is_hook = path.suffix == ".pth" or path.name.startswith(("__editable__", "__pycache__"))
            target = folder / path.name
            if not is_hook and (place, path.name) not in left_out and not target.is_symlink():
                target.symlink_to(path)


def _is_editable(dist: Distribution) -> bool:
    """Return whether the code of a dist lies elsewhere, so that a link to its metadata would be of no use."""
    return all(name.endswith((".pth", ".dist-info")) for name in _top_level(dist) - {"__pycache__"})


def _top_level(dist: Distribution) -> set[str]:
    """Return the names in site-packages that belong to a dist."""
    return {file.parts[0] for file in dist.files or () if file.parts[0] != ".."}
