"""Tests that the core stays within a budget of lines, and that what one package alone uses moves out of it.

Both numbers only fall. Whoever must raise one names in CHANGELOG.md what was removed in exchange. To write the list of
names anew once one has moved, run this file:

    python tests/test_budget.py
"""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
CORE = ROOT / "rlcore"
LISTED = ROOT / "tests" / "used_by_one_package.txt"
MAX_LINES = 17_780
"""Lines of `rlcore/` without the conformance kit."""
SLACK = 200
"""Lines by which the core may stay below the budget before the budget must be lowered."""


def core_lines(core: Path) -> int:
    """Return the number of lines of Python in the core, without the conformance kit."""
    files = [path for path in core.rglob("*.py") if path.relative_to(core).parts[0] != "testing"]
    return sum(len(path.read_text(encoding="utf-8").splitlines()) for path in files)


def imported(paths: list[Path]) -> set[str]:
    """Return the full names that files import from the core, at top level, in functions and for type checkers."""
    trees = [ast.parse(path.read_text(encoding="utf-8")) for path in paths]
    return {
        f"{node.module}.{alias.name}"
        for tree in trees
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom) and str(node.module).split(".")[0] == "rlcore"
        for alias in node.names
    }


def sources(folder: Path) -> list[Path]:
    """Return the Python files below a folder that are no tests."""
    return [path for path in folder.rglob("*.py") if "tests" not in path.relative_to(folder).parts]


def used_by_one(root: Path) -> list[str]:
    """Return the names of the core that one package imports, and neither the core nor another package."""
    users: dict[str, set[str]] = defaultdict(set)
    for file in [*root.glob("rlcore_*/pyproject.toml"), *root.glob("plugins/*/pyproject.toml")]:
        for name in imported(sources(file.parent)):
            users[name].add(file.parent.name)
    inside = {name.rpartition(".")[2] for name in imported(sources(root / "rlcore"))}
    return sorted(
        f"{name} {min(packages)}"
        for name, packages in users.items()
        if len(packages) == 1 and name.rpartition(".")[2] not in inside
    )


def test_the_core_stays_within_its_budget_of_lines() -> None:
    lines = core_lines(CORE)
    assert lines <= MAX_LINES, f"the core has {lines} lines: move code to a package, or remove some"
    assert lines > MAX_LINES - SLACK, f"the core has {lines} lines: lower MAX_LINES to it"


def test_no_more_names_of_the_core_serve_one_package_alone() -> None:
    listed, found = LISTED.read_text(encoding="utf-8").splitlines(), used_by_one(ROOT)
    assert not {*found} - {*listed}, "these names serve one package alone: define them there"
    assert not {*listed} - {*found}, "remove these names from the list, which only shrinks"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    files = {
        "rlcore/ops.py": "def shared(): ...\ndef lone(): ...\ndef inner(): ...\n",
        "rlcore/run.py": "from rlcore.ops import inner\n",
        "plugins/rlcore_testing/laws.py": "a law\n" * 50,
        "rlcore_a/pyproject.toml": "",
        "rlcore_a/trainer.py": "from rlcore.ops import inner, lone, shared\n",
        "plugins/rlcore_b/pyproject.toml": "",
        "plugins/rlcore_b/trainer.py": "from rlcore.ops import shared\n",
        "plugins/rlcore_b/tests/test_trainer.py": "from rlcore.ops import lone\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    return tmp_path


def test_a_name_that_one_package_alone_imports_is_found(tree: Path) -> None:
    (tree / "plugins/rlcore_testing/laws.py").write_text("", encoding="utf-8")
    assert used_by_one(tree) == ["rlcore.ops.lone rlcore_a"]


def test_the_kit_is_no_part_of_the_budget(tree: Path) -> None:
    assert core_lines(tree / "rlcore") == 4


if __name__ == "__main__":
    LISTED.write_text("".join(f"{line}\n" for line in used_by_one(ROOT)), encoding="utf-8")
