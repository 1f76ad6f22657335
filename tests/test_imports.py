"""Imports point down: no circles, nothing heavy above the door, no algorithm known to the core or to another."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Callable
from graphlib import TopologicalSorter
from pathlib import Path

import pytest

Python = Callable[..., subprocess.CompletedProcess[str]]
ROOT = Path(__file__).resolve().parents[1]
HEAVY = ("torch", "transformers", "datasets", "accelerate")
LIGHT = [
    "rlcore",
    "rlcore.plugins.agreement",
    "rlcore.models.speed.activations",
    "rlcore.cli",
    "rlcore.components",
    "rlcore.config",
    "rlcore.config.describe",
    "rlcore.plugins.discovery",
    "rlcore.cli.doctor",
    "rlcore.cli.doctor_report",
    "rlcore.errors",
    "rlcore.plugins.fence",
    "rlcore.plugins.metadata",
    "rlcore.hookspecs",
    "rlcore.plugins.metadata",
    "rlcore.plugins.registry",
    "rlcore.cli.list_plugins",
    "rlcore.cli.new_plugin.command",
    "rlcore.cli.show",
    "rlcore.cli.train",
    "rlcore.logging",
    "rlcore.loggers.tables",
    "rlcore.logging",
    "rlcore.cli.machine",
    "rlcore.plugins.observers",
    "rlcore.optim.options",
    "rlcore.config.options",
    "rlcore.training.peak_memory",
    "rlcore.planning",
    "rlcore.planning.command",
    "rlcore.planning.sizes",
    "rlcore.config.workload",
    "rlcore.plugins.builtin",
    "rlcore.profiling",
    "rlcore.plugins.registry",
    "rlcore.cli.rollouts",
    "rlcore.cli.rollouts.command",
    "rlcore.training.rollout_log",
    "rlcore.cli.rollouts.read",
    "rlcore.cli.rollouts.show",
    "rlcore.cli.new_plugin",
    "rlcore.cli.new_plugin.kinds",
    "rlcore.cli.new_plugin.names",
    "rlcore.cli.new_plugin.write",
    "rlcore.cli.screen",
    "rlcore.settings",
    "rlcore.config.structure",
    "rlcore.plugins.checks",
    "rlcore.plugins.switches",
    "rlcore.config.plain",
    "rlcore.logging",
    "rlcore.plugins.checks",
    "rlcore.config.describe",
    "rlcore.plugins.wrappers",
    "rlcore.config.yaml_files",
    "rlcore_disk_store",
    "rlcore_disk_store.config",
    "rlcore_disk_store.plugin",
    "rlcore_ilql",
    "rlcore_ilql.config",
    "rlcore_ilql.plugin",
    "rlcore_ppo",
    "rlcore_ppo.config",
    "rlcore_ppo.plugin",
    "rlcore_reinforce",
    "rlcore_reinforce.config",
    "rlcore_reinforce.plugin",
    "rlcore_rft",
    "rlcore_rft.config",
    "rlcore_rft.plugin",
    "rlcore_sft",
    "rlcore_sft.config",
    "rlcore_sft.plugin",
    "rlcore_tensorboard",
    "rlcore_tensorboard.config",
    "rlcore_tensorboard.plugin",
    "rlcore_wandb",
    "rlcore_wandb.config",
    "rlcore_wandb.plugin",
]
FOLDERS = {"rlcore": ROOT / "rlcore"} | {
    file.parent.name: file.parent
    for place in ("rlcore_*", "plugins/*")
    for file in sorted(ROOT.glob(f"{place}/pyproject.toml"))
}
PACKAGES = list(FOLDERS)


def module_files(package: str) -> dict[str, Path]:
    found = {}
    folder = FOLDERS[package]
    for path in sorted(folder.rglob("*.py")):
        parts = path.relative_to(folder.parent).with_suffix("").parts
        if parts[1] == "tests":
            continue
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


MODULES = {name: path for package in PACKAGES for name, path in module_files(package).items()}


def imported_at_once(path: Path) -> set[str]:
    """List what a module imports when it is imported itself: not in functions, not for type checkers."""
    found: set[str] = set()

    def visit(node: ast.AST) -> None:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            return
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            return
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        if isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            found.update(
                full if (full := f"{node.module}.{alias.name}") in MODULES else str(node.module) for alias in node.names
            )
        for child in ast.iter_child_nodes(node):
            visit(child)

    visit(ast.parse(path.read_text()))
    return found


def test_imports_run_in_no_circle() -> None:
    graph = {name: imported_at_once(path) & set(MODULES) for name, path in MODULES.items()}
    order = list(TopologicalSorter(graph).static_order())
    assert set(order) == set(MODULES)


def test_a_circle_would_be_seen() -> None:
    with pytest.raises(ValueError, match="nodes are in a cycle"):
        list(TopologicalSorter({"a": {"b"}, "b": {"a"}}).static_order())


@pytest.mark.parametrize("name", sorted(MODULES))
def test_the_core_knows_no_algorithm_and_an_algorithm_no_other(name: str) -> None:
    own = name.partition(".")[0]
    text = ast.parse(MODULES[name].read_text())
    for node in ast.walk(text):
        modules = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        modules += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        for module in modules:
            top = module.partition(".")[0]
            assert not top.startswith("rlcore_") or top == own, f"{name} imports {module}"


def test_light_modules_import_nothing_heavy(python: Python) -> None:
    code = (
        "import importlib, sys\n"
        f"for name in {LIGHT!r}:\n"
        "    importlib.import_module(name)\n"
        f"    heavy = sorted(set({HEAVY!r}) & set(sys.modules))\n"
        "    if heavy: sys.exit(f'{name} imports {heavy}')\n"
    )
    done = python("-c", code)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", ["ops", "loss"])
def test_the_maths_imports_torch_only(name: str) -> None:
    for module, path in MODULES.items():
        if module.rpartition(".")[2] == name:
            outside = {each.partition(".")[0] for each in imported_at_once(path)} - set(sys.stdlib_module_names)
            assert outside <= {"torch", *PACKAGES}, f"{module} imports {outside}"
