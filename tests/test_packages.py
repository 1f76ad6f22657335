"""Tests that the packages of this repository import only the public API that any plugin may import."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
SNAPSHOT = ROOT / "tests/public_api.txt"
PACKAGES = sorted(
    file.parent for file in [*ROOT.glob("rlcore_*/pyproject.toml"), *ROOT.glob("plugins/*/pyproject.toml")]
)
EXCEPTIONS: dict[str, tuple[str, ...]] = {
    # Its rows are tokenised as the built-in pipelines tokenise theirs, and it is released with the core.
    "rlcore_preferences": (
        "rlcore.data.limits.truncated_prompt",
        "rlcore.data.offsets.count_common",
        "rlcore.data.turns.tokenise_chats",
    ),
    # It is released with the core.
    "rlcore_bench": (
        "rlcore._version.__version__",
        "rlcore.cli.screen",
    ),
    # It builds a run without weights and repeats its steps on fake tensors, and is released with the core.
    "rlcore_plan": (
        "rlcore.components.LANGUAGE_MODEL",
        "rlcore.components.SCORER",
        "rlcore.config.paths.existing_path",
        "rlcore.data.data_sets.is_stream",
        "rlcore.logging.LEVEL",
        "rlcore.models.freezing.vocabulary_size",
        "rlcore.models.hub.check_reach",
        "rlcore.models.hub.is_hub_id",
        "rlcore.models.kind.declared",
        "rlcore.models.peft.inject.unwrap",
        "rlcore.models.speed.fused_logprobs",
        "rlcore.models.speed.logit_tiles.Tile",
        "rlcore.models.speed.logit_tiles.tiles",
        "rlcore.optim.optimization.Optimizers",
        "rlcore.optim.optimization.sections",
        "rlcore.plugins.choice.Chooser",
        "rlcore.plugins.switches.configured",
        "rlcore.plugins.wrappers.Wrapping",
        "rlcore.protocols.decoders.joins",
        "rlcore.sampling.sampler_checks.takes_waiting",
        "rlcore.rewards.chosen_rewards.ChosenReward",
        "rlcore.training.check_trainer.check_declared",
        "rlcore.training.eval_grid.eval_samplings",
        "rlcore.training.inputs.DATA_INPUTS",
        "rlcore.training.inputs.Inputs",
        "rlcore.training.peak_memory.resident_bytes",
        "rlcore.training.run_components.Chosen",
        "rlcore.training.run_components.choose",
    ),
    # It reads the files of a run and prints as the console does, and is released with the core.
    "rlcore_report": (
        "rlcore._version.__version__",
        "rlcore.checkpoints.run_folder.MARK",
        "rlcore.checkpoints.run_folder.RunDir",
        "rlcore.checkpoints.run_folder.is_run",
        "rlcore.checkpoints.run_lock.is_locked",
        "rlcore.cli.screen.make_console",
        "rlcore.cli.screen.make_list",
        "rlcore.config.describe.Row",
        "rlcore.config.describe.describe",
        "rlcore.config.plain.from_json",
        "rlcore.loggers.console.ConsoleLogger",
        "rlcore.loggers.console.TIME_KEYS",
        "rlcore.loggers.console_options.ConsoleConfig",
        "rlcore.loggers.conversations.display_row",
        "rlcore.loggers.conversations.turns_of",
        "rlcore.loggers.headline.MAX_CELLS",
        "rlcore.loggers.headline.place_in",
        "rlcore.loggers.tables.html_table",
        "rlcore.loggers.tables.make_table",
        "rlcore.loggers.tables.short_name",
        "rlcore.loggers.tables.show_cell",
        "rlcore.loggers.tables.show_number",
    ),
    # Its command reads a configuration's data without building the run, and is released with the core.
    "rlcore_tools": (
        "rlcore.cli.screen.make_console",
        "rlcore.components.LANGUAGE_MODEL",
        "rlcore.components.SCORER",
        "rlcore.config.paths.existing_path",
        "rlcore.config.plain.from_json",
        "rlcore.config.structure.structure_valid",
        "rlcore.config.synonyms",
        "rlcore.data.streams.open_stream",
        "rlcore.loggers.headline.place_in",
        "rlcore.loggers.tables.show_cell",
        "rlcore.models.hub.is_hub_id",
        "rlcore.models.kind.ENCODER_DECODER",
        "rlcore.models.kind.declared",
        "rlcore.models.kind.kind_of",
        "rlcore.plugins.discovery",
        "rlcore.plugins.metadata",
        "rlcore.plugins.switches.configured",
        "rlcore.plugins.wrappers.Wrapping",
        "rlcore.training.inputs.DATA_INPUTS",
        "rlcore.training.inputs.Inputs",
        "rlcore.training.run_components.choose",
    ),
}
"""Imports allowed per package beside public names; a name leaves the list when its last import goes."""


def public() -> tuple[set[str], set[str]]:
    """Return the full names in the snapshot, and their modules."""
    lines = SNAPSHOT.read_text(encoding="utf-8").splitlines()
    names = {line.split(maxsplit=1)[0].rstrip(":") for line in lines}
    modules = {name.rpartition(".")[0] for name in names}
    return names, modules


def imports(path: Path) -> Iterator[tuple[int, str, str]]:
    """Yield line, module and name of each import of the core: top-level, in functions, and for type checkers."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and str(node.module).split(".")[0] == "rlcore":
            yield from ((node.lineno, str(node.module), alias.name) for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name, "") for alias in node.names if alias.name.split(".")[0] == "rlcore")


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


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.name)
def test_packages_import_public_names_only(package: Path) -> None:
    assert not private_imports(package, EXCEPTIONS.get(package.name, ()))


def test_every_exception_is_of_use() -> None:
    for package in PACKAGES:
        allowed = EXCEPTIONS.get(package.name, ())
        for module in allowed:
            assert private_imports(package, tuple(each for each in allowed if each != module)), (package.name, module)


def test_a_private_import_is_found_wherever_it_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(f"{__name__}.ROOT", tmp_path)
    (tmp_path / "trainer.py").write_text(
        "from rlcore import ops, hookimpl\n"
        "from rlcore.training import Run, collect\n"
        "import rlcore.models.forward\n"
        "def work():\n"
        "    from rlcore.training.rollout import collect\n",
        encoding="utf-8",
    )
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests/test_it.py").write_text("from rlcore.training.rollout import collect\n", encoding="utf-8")
    assert private_imports(tmp_path) == [
        "trainer.py:2: rlcore.training.collect",
        "trainer.py:3: rlcore.models.forward",
        "trainer.py:5: rlcore.training.rollout.collect",
    ]
