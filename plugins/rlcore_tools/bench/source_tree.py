"""Versions of a git repository, written to folders of their own: a commit, or the working tree as it is.

Also in this file: a virtual environment for a source tree, with its own dists, built from the tree. Libraries such as
torch are those of the running environment, linked and not copied. The dists of the compared trees are left out of
them, also those that only the other tree has, so that neither tree loads code of the other.
"""

from __future__ import annotations

import compileall
import io
import shutil
import subprocess
import sys
import tarfile
import tomllib
import venv
import zipfile
from collections.abc import Iterable, Sequence
from importlib.metadata import Distribution, distributions
from pathlib import Path

import attrs
from build import BuildBackendException, BuildException, ProjectBuilder, check_dependency
from packaging.utils import canonicalize_name
from pyproject_hooks import quiet_subprocess_runner

from rlcore import RLCoreError
from rlcore.safe_text import visible

_UNTRACKED = ("ls-files", "-z", "--others", "--exclude-standard")


class UnknownVersion(RLCoreError, LookupError):
    """A version that cannot be compared: no git repository, or no such commit in it."""


@attrs.frozen
class Version:
    """A version of a repository.

    Attributes:
        label: its name in tables and legends.
        about: one sentence: commit, date and subject, and what is not committed.
        commit: the full hash.
        is_working_tree: whether it is the working tree, with its uncommitted changes, instead of the commit.
    """

    label: str
    about: str
    commit: str
    is_working_tree: bool = False


class Repository:
    """A git repository, which is only read.

    Args:
        folder: any folder of its working tree.

    Raises:
        UnknownVersion: the folder is in no working tree, or git is not installed.
    """

    def __init__(self, folder: Path) -> None:
        if shutil.which("git") is None:
            raise UnknownVersion("git is not installed, and `rlcore bench` takes versions from a git repository")
        self.root = folder
        found = self._git("rev-parse", "--show-toplevel")
        if found.returncode:
            raise UnknownVersion(
                f"{folder}: is in no git repository ({_reason(found)}); `rlcore bench` compares two versions of one: "
                "run it in a clone of rlcore"
            )
        self.root = Path(_text(found))

    def commit(self, ref: str) -> Version:
        """Return the version of a branch, tag or hash.

        Raises:
            UnknownVersion: it does not name a commit of this repository.
        """
        found = self._git("rev-parse", "--verify", "--quiet", f"{ref}^{{commit}}")
        if found.returncode:
            raise UnknownVersion(
                f"{ref}: is no commit of {self.root}; name a branch, a tag or a hash (`git log --oneline` lists "
                "commits, and `git fetch` gets those of others)"
            )
        commit = _text(found)
        return Version(ref, self._describe(commit), commit)

    def working_tree(self) -> Version:
        """Return the working tree: tracked files as they are, and untracked ones that git does not ignore.

        Raises:
            UnknownVersion: there is no commit yet.
        """
        head = self.commit("HEAD")
        changed = self._names("diff", "--name-only", "-z", "HEAD") + self._names(*_UNTRACKED)
        if not changed:
            return attrs.evolve(head, label="working tree", is_working_tree=True)
        about = f"{head.about}, with uncommitted changes in {len(changed)} file{'s' * (len(changed) > 1)}"
        return attrs.evolve(head, label="working tree", about=about, is_working_tree=True)

    def write(self, version: Version, folder: Path) -> None:
        """Write the files of a version to a new folder."""
        folder.mkdir(parents=True)
        if not version.is_working_tree:
            archive = self._run("archive", "--format=tar", version.commit)
            with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
                tar.extractall(folder, filter="tar")
            return
        for name in self._names(*_UNTRACKED, "--cached"):
            source = self.root / name
            if source.is_file() or source.is_symlink():  # not deleted, no submodule
                (folder / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(source, folder / name, follow_symlinks=False)

    def _describe(self, commit: str) -> str:
        shown = self._run("show", "--no-patch", "--format=%h of %ci: %s", commit)
        return visible(shown.decode(errors="replace").strip())

    def _names(self, *arguments: str) -> list[str]:
        return [name for name in self._run(*arguments).decode(errors="surrogateescape").split("\0") if name]

    def _run(self, *arguments: str) -> bytes:
        found = self._git(*arguments)
        if found.returncode:
            raise UnknownVersion(f"{self.root}: git {arguments[0]} failed: {_reason(found)}")
        return found.stdout

    def _git(self, *arguments: str) -> subprocess.CompletedProcess[bytes]:
        command = ["git", "-C", str(self.root), *arguments]
        return subprocess.run(command, capture_output=True, check=False)  # noqa: S603  no shell reads the arguments


def _text(found: subprocess.CompletedProcess[bytes]) -> str:
    return found.stdout.decode(errors="surrogateescape").strip()


def _reason(found: subprocess.CompletedProcess[bytes]) -> str:
    return visible(found.stderr.decode(errors="replace").strip().partition("\n")[0])


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
            archive.extractall(site)  # noqa: S202  a wheel that was built here
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
