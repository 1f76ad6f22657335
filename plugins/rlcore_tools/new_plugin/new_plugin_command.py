"""The arguments of `rlcore new-plugin`, and the function that runs it.

Also in this file: render the templates of one kind, and write the package to disk in one rename.
"""

from __future__ import annotations

import argparse
import importlib.machinery
import keyword
import re
import shlex
import shutil
import sys
import tempfile
import textwrap
import unicodedata
from collections.abc import Callable
from importlib import resources
from importlib.metadata import PackageNotFoundError, distribution
from importlib.resources.abc import Traversable
from pathlib import Path
from string import Template

import attrs
from packaging.version import Version

import rlcore
from rlcore.components import normalise
from rlcore.errors import PluginNameError, ScaffoldError
from rlcore.plugins.registry import all_registries


@attrs.frozen
class PluginKind:
    """One kind of plugin: the values that its templates need.

    Attributes:
        name: value of `--kind`, and name of the module with the implementation.
        registry: registry of the components of this kind.
        noun: name of a component in a sentence.
        target: attribute to register, with `{title}` for the component's name in CamelCase.
        summary: one-line description for `rlcore show`.
        about: first sentence of the README.
        uses_torch: whether the package imports torch itself.
        uses_transformers: whether it needs the language models and pipelines of `rlcore-transformers`.
        builds_on: further packages of the repository that it needs.
    """

    name: str
    registry: str
    noun: str
    target: str
    summary: str
    about: str
    uses_torch: bool = False
    uses_transformers: bool = False
    builds_on: tuple[str, ...] = ()


_ALL = (
    PluginKind(
        name="trainer",
        registry="trainers",
        noun="trainer",
        target="{title}Trainer",
        summary="REINFORCE with a leave-one-out baseline",
        about="A trainer for rlcore: REINFORCE with a leave-one-out baseline. It weights the log-probability of each "
        "response by its score minus the mean score of the other responses in the round.",
        uses_torch=True,
        uses_transformers=True,
    ),
    PluginKind(
        name="logger",
        registry="loggers",
        noun="logger",
        target="{title}Logger",
        summary="metrics in a CSV file, one value per row",
        about="A logger for rlcore that writes the metrics of a run to a CSV file, one value per row, so that each "
        "step may have different metrics.",
    ),
    PluginKind(
        name="pipeline",
        registry="pipelines",
        noun="pipeline",
        target="{title}Pipeline",
        summary="prompts inserted into a template",
        about="A pipeline for rlcore that inserts every prompt into a template before it is tokenised.",
        uses_transformers=True,
    ),
    PluginKind(
        name="architecture",
        registry="architectures",
        noun="architecture",
        target="build_policy",
        summary="causal_lm with frozen embeddings",
        about="An architecture for rlcore that builds any causal language model with frozen token embeddings, and "
        "optionally other frozen parameters.",
        uses_transformers=True,
    ),
    PluginKind(
        name="store",
        registry="rollout_stores",
        noun="rollout store",
        target="{title}Store",
        summary="the rollouts with the highest scores, in memory",
        about="A rollout store for rlcore that keeps the rollouts with the highest scores between sampling and "
        "learning, and drops the others.",
    ),
    PluginKind(
        name="sampler",
        registry="samplers",
        noun="sampler",
        target="{title}Sampler",
        summary="batches of prompts limited by a token budget",
        about="A sampler for rlcore whose batch size follows from a token budget and the length of the prompts.",
        uses_torch=True,
    ),
    PluginKind(
        name="reward",
        registry="rewards",
        noun="reward",
        target="{title}Reward",
        summary="share of given words in the output, minus a length penalty",
        about="A reward for rlcore: the share of given words that occur in an output, minus a penalty for its length.",
    ),
    PluginKind(
        name="environment",
        registry="environments",
        noun="environment",
        target="{title}Environment",
        summary="guess a number, with answers that say higher or lower",
        about="An environment for rlcore: a game in which the policy guesses a number and reads whether it is higher "
        "or lower.",
        uses_transformers=True,
        builds_on=("rlcore-environments",),
    ),
)
KINDS = {kind.name: kind for kind in _ALL}


PREFIX = "rlcore-"
LONGEST = 30
"""Most characters in a component's name; the conformance kit has the same limit."""
RESERVED = ("example", "src", "tests")
"""Names of other modules and folders in the package's repository."""


@attrs.frozen
class Names:
    """The names of one plugin.

    Attributes:
        dist: name for pip, such as `rlcore-my-algo`.
        package: import package, such as `rlcore_my_algo`.
        component: name in a configuration, such as `my-algo`.
        title: prefix of the class names, such as `MyAlgo`.
    """

    dist: str
    package: str
    component: str
    title: str


def read_name(name: str, kind: PluginKind) -> Names:
    """Derive all names of a plugin from the name of its dist.

    Raises:
        PluginNameError: the name is not valid for a dist, or its package or component would be invalid or hide another.
    """
    _check_form(name)
    component = name.removeprefix(PREFIX)
    names = Names(
        dist=name,
        package=name.replace("-", "_"),
        component=component,
        title=_title(component, kind),
    )
    _check_package(names)
    for other in getattr(all_registries(), kind.registry).matches(component):
        raise PluginNameError(
            f"'{name}': {other.dist} {other.version} already has a {kind.noun} '{component}'; choose another name"
        )
    return names


def _check_form(name: str) -> None:
    component = name.removeprefix(PREFIX)
    if len(component) > LONGEST:
        raise PluginNameError(
            f"'{name}': the component name '{component}' has {len(component)} characters; the limit is {LONGEST}"
        )
    if not re.fullmatch(r"[a-z][a-z0-9]*(-[a-z0-9]+)*", name):
        near = re.sub(r"[^a-z0-9]+", "-", normalise(_without_accents(name))).strip("-0123456789")
        hint = f"; try '{near}'" if near else ""
        raise PluginNameError(
            f"'{name}': a name consists of lower-case letters, digits and single '-' between them, and begins with a "
            f"letter{hint}"
        )
    if not component[0].isalpha():
        raise PluginNameError(f"'{name}': the component name after '{PREFIX}' must begin with a letter")


def _title(component: str, kind: PluginKind) -> str:
    """Return a component's name in CamelCase without the suffix that its class gets: MyLogger, not MyLoggerLogger."""
    title = "".join(part[:1].upper() + part[1:] for part in component.split("-"))
    return title.removesuffix(kind.target.removeprefix("{title}")) or title


def _without_accents(name: str) -> str:
    return unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode()


def _check_package(names: Names) -> None:
    package = names.package
    if keyword.iskeyword(package):
        raise PluginNameError(f"'{names.dist}': '{package}' is a Python keyword and cannot be imported")
    if package in sys.stdlib_module_names:
        raise PluginNameError(f"'{names.dist}': its package would hide the standard library's module '{package}'")
    if package in RESERVED:
        raise PluginNameError(f"'{names.dist}': the repository has another '{package}'; choose another name")
    try:
        installed = distribution(names.dist)
    except PackageNotFoundError:
        pass
    else:
        raise PluginNameError(
            f"'{names.dist}': {names.dist} {installed.version} is already installed; choose another name"
        )
    folders = [folder for folder in sys.path if folder not in {"", str(Path.cwd())}]
    spec = importlib.machinery.PathFinder.find_spec(package, folders)
    if spec is not None:
        origin = spec.origin or ", ".join(spec.submodule_search_locations or ())
        raise PluginNameError(f"'{names.dist}': its package would hide the module '{package}' in {origin}")


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


def command(parser: argparse.ArgumentParser) -> Callable[[argparse.Namespace], int]:
    """Add the arguments of `rlcore new-plugin` to its parser, and return the function that runs it."""
    parser.description = "Write a working plugin package with tests, as a starting point for your own plugin."
    parser.add_argument("name", metavar="NAME", help="name of the package for pip: lower-case letters, digits and '-'")
    parser.add_argument("--kind", choices=list(KINDS), default="trainer", help="kind of component; default: trainer")
    parser.add_argument("--path", type=Path, metavar="DIR", help="folder to create; default: ./NAME")
    return _new_plugin


def _new_plugin(arguments: argparse.Namespace) -> int:

    for file in new_plugin(arguments.name, kind=arguments.kind, path=arguments.path):
        print(file)
    print("\nnext:")
    for command in next_commands(arguments.name, kind=arguments.kind, path=arguments.path):
        print(f"  {command}")
    return 0
