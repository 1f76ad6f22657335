"""Render the templates of one kind and put the package on disk, whole or not at all."""

from __future__ import annotations

import shlex
import shutil
import tempfile
import textwrap
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from string import Template

from packaging.version import Version

from rlcore._version import __version__
from rlcore.cli.new_plugin.kinds import KINDS, PluginKind
from rlcore.cli.new_plugin.names import Names, read_name
from rlcore.errors import ScaffoldError

SUFFIX = ".tmpl"
PART = "part-"


def new_plugin(name: str, *, kind: str = "trainer", path: Path | None = None) -> list[Path]:
    """Write a package that brings a component of `kind`.

    Args:
        name: of the dist; that of the component follows from it.
        kind: one of KINDS.
        path: folder to make; `name` in the working folder if absent.

    Returns:
        the files, in their order.

    Raises:
        PluginNameError: the name cannot be used.
        ScaffoldError: the folder exists, or cannot be written; nothing is left behind.
    """
    folder = Path(name) if path is None else path
    files = render(read_name(name, KINDS[kind]), KINDS[kind])
    if folder.exists() or folder.is_symlink():
        raise ScaffoldError(
            f"{folder}: exists, and nothing is overwritten; remove it, or name another folder by --path"
        )
    if not folder.parent.is_dir():
        raise ScaffoldError(f"{folder}: there is no folder {folder.parent} to make it in; make that first")
    _write(files, folder)
    return [folder / file for file in files]


def next_commands(name: str, *, kind: str = "trainer", path: Path | None = None) -> list[str]:
    """Return what to type next: install, test, use."""
    folder = shlex.quote(str(Path(name) if path is None else path))
    use = "rlcore train example.yaml" if kind == "trainer" else "rlcore list-plugins"
    return [f'cd {folder} && pip install -e ".[dev]"', "pytest", use]


def render(names: Names, kind: PluginKind) -> dict[str, str]:
    """Return the text of every file of the package, by its path in it."""
    values = {
        "name": names.dist,
        "package": names.package,
        "component": names.component,
        "title": names.title,
        "kind": kind.name,
        "registry": kind.registry,
        "noun": kind.noun,
        "target": kind.target.format(title=names.title),
        "summary": kind.summary,
        "about": textwrap.fill(kind.about, 120),
        "requirement": requirement(__version__),
        "torch": ', "torch"' if kind.uses_torch else "",
    }
    templates = resources.files(__package__) / "templates"
    files: dict[str, str] = {}
    for folder in (kind.name, "common"):  # what a kind has of its own goes into the README that all have
        own = {path: Template(text).substitute(values) for path, text in _texts(templates / folder)}
        values |= {path.removeprefix(PART).replace(".", "_"): text for path, text in own.items() if "/" not in path}
        files |= {_place(path, names): text for path, text in own.items() if not path.startswith(PART)}
    return dict(sorted(files.items()))


def requirement(version: str) -> str:
    """Write the versions of rlcore that a plugin made with this one needs: from here up to the next that may break it.

    That is the next minor version as long as the major one is 0, then the next major one.
    """
    here = Version(version)
    least = here.public if here.is_prerelease else f"{here.major}.{here.minor}"
    limit = f"0.{here.minor + 1}" if here.major == 0 else f"{here.major + 1}"
    return f"rlcore>={least},<{limit}"


def _texts(folder: Traversable, prefix: str = "") -> list[tuple[str, str]]:
    found = []
    for entry in folder.iterdir():
        if entry.is_dir():
            found += _texts(entry, f"{prefix}{entry.name}/")
        elif entry.name.endswith(SUFFIX):
            found.append((prefix + entry.name.removesuffix(SUFFIX), entry.read_text(encoding="utf-8")))
    return found


def _place(path: str, names: Names) -> str:
    parts = [names.package if part == "package" else part for part in path.split("/")]
    return "/".join(f".{part.removeprefix('dot-')}" if part.startswith("dot-") else part for part in parts)


def _write(files: dict[str, str], folder: Path) -> None:
    """Write beside and rename, so that a failure leaves nothing."""
    beside: Path | None = None
    try:
        beside = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
        made = beside / "made"  # whose permissions are the usual ones, not those of a temporary folder
        for path, text in files.items():
            file = made / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8", newline="\n")
        made.rename(folder)
    except OSError as error:
        raise ScaffoldError(f"{folder}: cannot be written: {error}; nothing was") from error
    finally:
        if beside is not None:
            shutil.rmtree(beside, ignore_errors=True)
