"""Tests of imports beyond the import contracts in pyproject.toml: light modules, pure modules, names the core may use.

`make lint` runs the contracts themselves: imports run down the levels, without circles.
"""

from __future__ import annotations

import ast
import functools
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement

Python = Callable[..., subprocess.CompletedProcess[str]]
ROOT = Path(__file__).resolve().parents[1]
HEAVY = ("torch", "transformers", "datasets", "accelerate")
LIGHT_SHELVES = (
    "rlcore._lazy",
    "rlcore._version",
    "rlcore.cli",
    "rlcore.components",
    "rlcore.config",
    "rlcore.errors",
    "rlcore.hookspecs",
    "rlcore.logging",
    "rlcore.plugins",
    "rlcore.profiling",
    "rlcore.settings",
)
"""Packages and modules without heavy imports; of other packages, the `__init__` modules alone."""
LIGHT_MODULES = (
    "rlcore",
    "rlcore.checkpoints.manifest",
    "rlcore.checkpoints.run_folder",
    "rlcore.loggers.console",
    "rlcore_transformers.models.model_options",
    "rlcore.optim",
    "rlcore_transformers.optimizers.optimizer_options",
    "rlcore.rewards",
    "rlcore.training",
)
DEFAULT_PACKAGES = {
    "rlcore_testing",
    "rlcore_transformers",
    "rlcore_report",
    "rlcore_shard",
    "rlcore_environments",
}
"""Packages that are made of the former parts of the core, and may be built upon."""
MAY_NAME_PACKAGES = ("rlcore_testing",)
"""The conformance kit, which is published with the packages."""


def _packages() -> dict[str, Path]:
    files = [*ROOT.glob("rlcore_*/pyproject.toml"), *ROOT.glob("plugins/*/pyproject.toml")]
    return {"rlcore": ROOT / "rlcore"} | {file.parent.name: file.parent for file in sorted(files)}


PACKAGES = _packages()


def module_files(package: str) -> Iterator[tuple[str, Path]]:
    folder = PACKAGES[package]
    for path in sorted(folder.rglob("*.py")):
        parts = path.relative_to(folder.parent).with_suffix("").parts
        if parts[1] != "tests":
            yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), path


MODULES = {name: path for package in PACKAGES for name, path in module_files(package)}


def within(name: str, shelves: tuple[str, ...]) -> bool:
    return any(name == shelf or name.startswith(shelf + ".") for shelf in shelves)


@functools.cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@functools.cache
def imported(path: Path) -> frozenset[str]:
    """Return the modules of every import: top-level, in functions, and for type checkers."""
    found: set[str] = set()
    for node in ast.walk(parsed(path)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: relative import"
            found.add(str(node.module))
    return frozenset(found)


def required(name: str) -> set[str]:
    """Return the packages that a module may import, by the metadata of its own.

    These are the default packages that it requires. A subpackage or module that is called like an extra, such as a
    suite of programs, may import all that the extra requires.
    """
    package, *inside = name.split(".")
    if package == "rlcore":
        return set()
    project = tomllib.loads((PACKAGES[package] / "pyproject.toml").read_text())["project"]
    extras = project.get("optional-dependencies", {})
    extra = [line for part in inside for line in extras.get(part.replace("_", "-"), ())]
    always, further = (
        {Requirement(each).name.replace("-", "_") for each in each_of} for each_of in (project["dependencies"], extra)
    )
    return always & DEFAULT_PACKAGES | further


@pytest.mark.slow
def test_the_core_imports_no_package_and_a_package_only_those_that_it_requires() -> None:
    found = []
    for name, path in MODULES.items():
        tops = {module.partition(".")[0] for module in imported(path)} - {name.partition(".")[0]}
        others = {top for top in tops if top.startswith("rlcore_")}
        if others:
            found += [f"{name} imports {top}" for top in sorted(others - required(name))]
    assert not found, "\n".join(found)


def test_light_packages_of_the_core_import_nothing_heavy(python: Python) -> None:
    light = [name for name in MODULES if within(name, LIGHT_SHELVES) and not name.endswith(".__main__")]
    light += [name for name in MODULES if name.count(".") <= 1 and name.partition(".")[2] in ("", "config", "plugin")]
    code = (
        "import importlib, sys\n"
        f"for name in {[*light, *LIGHT_MODULES]!r}:\n"
        "    importlib.import_module(name)\n"
        f"    heavy = sorted(set({HEAVY!r}) & set(sys.modules))\n"
        "    if heavy: sys.exit(f'{name} imports {heavy}')\n"
    )
    done = python("-c", code)
    assert done.returncode == 0, done.stderr


def test_libraries_of_images_are_imported_for_images_only() -> None:
    for name, path in MODULES.items():
        found = {module.partition(".")[0] for module in imported(path)}
        assert "torchvision" not in found, name
        assert name.startswith(("rlcore_ddpo", "rlcore_vision")) or not found & {"PIL", "diffusers"}, name


@pytest.mark.parametrize("name", ["ops", "loss"])
def test_the_maths_imports_torch_only(name: str) -> None:
    files = [path for module, path in MODULES.items() if module.rpartition(".")[2] == name]
    assert files
    for path in files:
        outside = {each.partition(".")[0] for each in imported(path)} - set(sys.stdlib_module_names)
        assert outside <= {"torch", *PACKAGES}, f"{path} imports {outside}"


def _names_of_plugins() -> re.Pattern[str]:
    dists = {tomllib.loads((folder / "pyproject.toml").read_text())["project"]["name"]
             for package, folder in PACKAGES.items() if package != "rlcore"}  # fmt: skip
    trainers = {"ppo", "ilql", "sft", "rft", "reinforce", "grpo", "rloo", "dpo", "ddpo"}
    names = dists | trainers | {dist.replace("-", "_") for dist in dists}
    return re.compile(rf"(?<![\w-])({'|'.join(sorted(names, key=len, reverse=True))})(?![\w-])", re.IGNORECASE)


def test_the_core_names_no_trainer_and_no_other_dist() -> None:
    """The core does not depend on which plugins exist: none of its strings names one."""
    pattern, found = _names_of_plugins(), []
    for name, path in MODULES.items():
        if name.partition(".")[0] != "rlcore" or within(name, MAY_NAME_PACKAGES):
            continue
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                found += [f"{path}:{node.lineno}: {match[0]}" for match in pattern.finditer(node.value)]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("reward_fn → ppo", ["ppo"]), ("rlcore-engines", ["rlcore-engines"]), ("SFT does", ["SFT"]),
        ("shift, opposite, rlcore", []),
    ],
)  # fmt: skip
def test_the_search_for_names_of_plugins_finds_them(text: str, names: list[str]) -> None:
    assert [match[0] for match in _names_of_plugins().finditer(text)] == names


def test_the_name_of_a_module_or_class_occurs_once() -> None:
    """A reader can find every name; only `__init__`, `__main__`, `plugin` and `config` occur in several packages."""
    modules: dict[str, list[str]] = {}
    classes: dict[str, list[str]] = {}
    for name, path in MODULES.items():
        if name.partition(".")[0] == "rlcore" and not within(name, ("rlcore_testing",)) and path.stem[0] != "_":
            modules.setdefault(path.stem, []).append(name)
        for node in parsed(path).body:
            if isinstance(node, ast.ClassDef):
                classes.setdefault(node.name, []).append(name)
    assert {name: places for name, places in {**modules, **classes}.items() if len(places) > 1} == {}


@pytest.mark.slow
def test_modules_that_tests_import_have_names_of_their_own() -> None:
    """Folders of tests are on `sys.path` together, so that of two modules with one name any may be imported."""
    files = [file for folder in ("tests", "plugins/*/tests") for file in _test_files(folder)]
    places: dict[str, list[str]] = {}
    for file in files:
        places.setdefault(file.stem, []).append(str(file.relative_to(ROOT)))
    twice = {name: where for name, where in places.items() if len(where) > 1}
    assert twice, "test_conformance is in many packages"
    shared = {
        f"{file.relative_to(ROOT)} imports {name}, which is one of {', '.join(twice[name])}"
        for file in files
        for name in _imported_names(file) & twice.keys()
    }
    assert not shared, "rename the module that is imported: " + "; ".join(sorted(shared))


def _test_files(pattern: str) -> list[Path]:
    """Return the modules in folders of tests; those in packages have the names of these before their own."""
    found = [file for folder in ROOT.glob(pattern) for file in folder.rglob("*.py")]
    return [file for file in found if not (file.parent / "__init__.py").exists()]


def _imported_names(file: Path) -> set[str]:
    nodes = list(ast.walk(ast.parse(file.read_text(encoding="utf-8"))))
    plain = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    return plain | {str(node.module) for node in nodes if isinstance(node, ast.ImportFrom) and not node.level}
