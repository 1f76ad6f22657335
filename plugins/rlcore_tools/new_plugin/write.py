"""Render the templates of one kind, and write the package to disk in one rename."""

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

import rlcore
from rlcore.errors import ScaffoldError
from rlcore_tools.new_plugin.kinds import KINDS, PluginKind
from rlcore_tools.new_plugin.names import Names, read_name

SUFFIX = ".tmpl"
PART = "part-"


def new_plugin(name: str, *, kind: str = "trainer", path: Path | None = None) -> list[Path]:
    """Write a package with one component of `kind`.

    Args:
        name: name of the dist; the component's name is derived from it.
        kind: a key of KINDS.
        path: folder to create; default: `name` in the working folder.

    Returns:
        the paths of the files, sorted.

    Raises:
        PluginNameError: the name is invalid or taken.
        ScaffoldError: the folder exists, or cannot be written; no file is left behind.
    """
    folder = Path(name) if path is None else path
    files = render(read_name(name, KINDS[kind]), KINDS[kind])
    if folder.exists() or folder.is_symlink():
        raise ScaffoldError(f"{folder}: exists and is not overwritten; remove it, or name another folder with --path")
    if not folder.parent.is_dir():
        raise ScaffoldError(f"{folder}: its parent folder {folder.parent} does not exist; create it first")
    _write(files, folder)
    return [folder / file for file in files]


def next_commands(name: str, *, kind: str = "trainer", path: Path | None = None) -> list[str]:
    """Return the shell commands to run next: install, test, use."""
    folder = shlex.quote(str(Path(name) if path is None else path))
    uses = {"trainer": "rlcore train example.yaml", "environment": "python learn.py"}
    return [f'cd {folder} && pip install -e ".[dev]"', "pytest", uses.get(kind, "rlcore list-plugins")]


def render(names: Names, kind: PluginKind) -> dict[str, str]:
    """Return path in the package -> text, for every file."""
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
        "requirements": ", ".join(f'"{each}"' for each in _requirements(kind)),
    }
    templates = resources.files(__package__) / "templates"
    files: dict[str, str] = {}
    for folder in (kind.name, "common"):  # the kind's parts are values of the common README
        texts = {path: Template(text).substitute(values) for path, text in _texts(templates / folder)}
        values |= {path.removeprefix(PART).replace(".", "_"): text for path, text in texts.items() if "/" not in path}
        files |= {_target_path(path, names): text for path, text in texts.items() if not path.startswith(PART)}
    return dict(sorted(files.items()))


def _requirements(kind: PluginKind) -> list[str]:
    bounds = requirement(rlcore.__version__)
    names = [*(["rlcore-transformers"] if kind.uses_transformers else []), *kind.builds_on]
    builds_on = [f"{name}{bounds.removeprefix('rlcore')}" for name in names]
    return [bounds, *builds_on, *(["torch"] if kind.uses_torch else [])]


def requirement(version: str) -> str:
    """Return the requirement on rlcore of a plugin written with `version`: below the next version that may break it.

    That is the next minor version while the major version is 0, and the next major version afterwards.
    """
    current = Version(version)
    lower = current.public if current.is_prerelease else f"{current.major}.{current.minor}"
    upper = f"0.{current.minor + 1}" if current.major == 0 else f"{current.major + 1}"
    return f"rlcore>={lower},<{upper}"


def _texts(folder: Traversable, prefix: str = "") -> list[tuple[str, str]]:
    texts = []
    for entry in folder.iterdir():
        if entry.is_dir():
            texts += _texts(entry, f"{prefix}{entry.name}/")
        elif entry.name.endswith(SUFFIX):
            texts.append((prefix + entry.name.removesuffix(SUFFIX), entry.read_text(encoding="utf-8")))
    return texts


def _target_path(path: str, names: Names) -> str:
    parts = [names.package if part == "package" else part for part in path.split("/")]
    return "/".join(f".{part.removeprefix('dot-')}" if part.startswith("dot-") else part for part in parts)


def _write(files: dict[str, str], folder: Path) -> None:
    """Write to a temporary folder next to `folder` and rename it, so that a failure leaves no partial package."""
    temporary: Path | None = None
    try:
        temporary = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
        package = temporary / "package"  # a subfolder, because mkdtemp restricts the permissions of its folder
        for path, text in files.items():
            file = package / path
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8", newline="\n")
        package.rename(folder)
    except OSError as error:
        raise ScaffoldError(f"{folder}: cannot be written: {error}; no file was created") from error
    finally:
        if temporary is not None:
            shutil.rmtree(temporary, ignore_errors=True)
