"""Tests of a tree's environment: which libraries it shares, and which dists a tree has."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from rlcore_tools.bench.source_tree import TreeNotBuilt, find_dists, link_libraries


def install(site: Path, name: str, *files: str) -> None:
    info = site / f"{name}-1.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n")
    (info / "RECORD").write_text("".join(f"{file},,\n" for file in (*files, f"{info.name}/METADATA", "../../bin/run")))
    for file in files:
        (site / file).parent.mkdir(exist_ok=True)
        (site / file).write_text("")


def test_an_environment_shares_all_libraries_but_the_dists_of_the_trees_and_editable_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site, other = tmp_path / "a" / "site-packages", tmp_path / "b" / "site-packages"
    install(site, "torch", "torch/__init__.py", "torchgen.py")
    install(site, "My.Trainer", "my_trainer/__init__.py")
    install(site, "edited", "edited.pth")
    install(other, "torch", "torch/__init__.py")
    install(other, "numpy", "numpy/__init__.py")
    monkeypatch.setattr(sys, "path", [str(tmp_path), str(site), str(other)])
    shared = tmp_path / "shared"
    shared.mkdir()
    link_libraries(shared, without=frozenset({"my-trainer"}))
    names = {path.name for path in shared.iterdir()}
    assert names == {"torch", "torchgen.py", "torch-1.dist-info", "numpy", "numpy-1.dist-info"}
    assert (shared / "torch").resolve() == site / "torch"  # the first on the path


def test_dists_are_found_by_their_names(tmp_path: Path) -> None:
    for place, name in ((".", "The_Core"), ("one", "one"), ("plugins/two", "two"), ("tests/deep/three", "three")):
        (tmp_path / place).mkdir(parents=True, exist_ok=True)
        (tmp_path / place / "pyproject.toml").write_text(f'[project]\nname = "{name}"\n')
    (tmp_path / "tool").mkdir()
    (tmp_path / "tool" / "pyproject.toml").write_text("[tool.ruff]\n")
    found = {"the-core": tmp_path, "one": tmp_path / "one", "two": tmp_path / "plugins" / "two"}
    assert find_dists(tmp_path, label="new") == found
    with pytest.raises(TreeNotBuilt, match="new: has no dist to build"):
        find_dists(tmp_path / "tool", label="new")
