"""Tests that the packages of this repository import only the public API that any plugin may import.

The list of the other names only shrinks. To write it anew once a name has left it, run this file:

    python tests/test_packages.py
"""

from __future__ import annotations

import ast
import functools
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SNAPSHOT = ROOT / "tests/public_api.txt"
PACKAGES = sorted(
    file.parent for file in [*ROOT.glob("rlcore_*/pyproject.toml"), *ROOT.glob("plugins/*/pyproject.toml")]
)
LISTED = ROOT / "tests/private_imports.txt"
"""Imports beside public names, a package and a name on each line. The packages with many are released with the core."""


def exceptions() -> dict[str, tuple[str, ...]]:
    """Return the listed names by package."""
    found: dict[str, tuple[str, ...]] = {}
    for line in LISTED.read_text(encoding="utf-8").splitlines():
        package, name = line.split()
        found[package] = (*found.get(package, ()), name)
    return found


@functools.cache
def public() -> tuple[set[str], set[str]]:
    """Return the full names in the snapshot, and their modules."""
    lines = SNAPSHOT.read_text(encoding="utf-8").splitlines()
    names = {line.split(maxsplit=1)[0].rstrip(":") for line in lines}
    modules = {name.rpartition(".")[0] for name in names}
    return names, modules


@functools.cache
def imports(path: Path) -> list[tuple[int, str, str]]:
    """Return line, module and name of each import of the core: top-level, in functions, and for type checkers."""
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and str(node.module).split(".")[0] == "rlcore":
            found += [(node.lineno, str(node.module), alias.name) for alias in node.names]
        elif isinstance(node, ast.Import):
            found += [(node.lineno, alias.name, "") for alias in node.names if alias.name.split(".")[0] == "rlcore"]
    return found


def within(name: str, modules: tuple[str, ...]) -> bool:
    return any(name == module or name.startswith(module + ".") for module in modules)


def private_imports(package: Path, allowed: tuple[str, ...] = ()) -> list[str]:
    """Return the imports of a package, without its tests, that the snapshot of the public API does not list."""
    names, modules = public()
    found = []
    for path in sorted(package.rglob("*.py")):
        if "tests" in path.relative_to(package).parts:
            continue
        for line, module, name in imports(path):
            full = f"{module}.{name}" if name else module
            if full not in names | modules | {"rlcore"} and not within(full, allowed):
                found.append(f"{path.relative_to(ROOT)}:{line}: {full}")
    return found


@pytest.mark.slow
def test_packages_import_public_names_and_listed_ones_only() -> None:
    allowed = exceptions()
    found = [line for package in PACKAGES for line in private_imports(package, allowed.get(package.name, ()))]
    assert not found, "\n".join(found)


def test_a_private_name_leaves_the_list_with_its_last_import() -> None:
    allowed, unused = exceptions(), []
    for package in PACKAGES:
        used = {line.partition(": ")[2] for line in private_imports(package)}
        unused += [f"{package.name} {name}" for name in allowed.get(package.name, ()) if name not in used]
    assert not unused, "\n".join(unused)


def test_a_private_import_is_found_wherever_it_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{__name__}.ROOT", tmp_path)
    (tmp_path / "trainer.py").write_text(
        "from rlcore import ops, hookimpl\n"
        "from rlcore.training import Run, collect\n"
        "import rlcore.training.rollout\n"
        "def work():\n"
        "    from rlcore.training.rollout import collect\n",
        encoding="utf-8",
    )
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests/test_it.py").write_text("from rlcore.training.rollout import collect\n", encoding="utf-8")
    assert private_imports(tmp_path) == [
        "trainer.py:2: rlcore.training.collect",
        "trainer.py:3: rlcore.training.rollout",
        "trainer.py:5: rlcore.training.rollout.collect",
    ]


if __name__ == "__main__":
    rows = {f"{package.name} {line.partition(': ')[2]}" for package in PACKAGES for line in private_imports(package)}
    LISTED.write_text("".join(f"{row}\n" for row in sorted(rows)), encoding="utf-8")
