"""Tests of the versions of a repository: what is written of a commit, and of a working tree with changes."""

from __future__ import annotations

from pathlib import Path

import pytest
from tiny_repository import commit, git, make_repository

from rlcore_tools.bench.source_tree import Repository, UnknownVersion


def test_a_working_tree_is_copied_with_its_uncommitted_changes(tmp_path: Path) -> None:
    root = make_repository(tmp_path / "repository")
    (root / "gone.txt").write_text("1")
    commit(root, "Add", tag="more")
    (root / "gone.txt").unlink()
    (root / "case.py").write_text("changed")
    (root / "new ü.txt").write_text("untracked")
    (root / "ignored.log").write_text("ignored")
    repository = Repository(root / "seesaw")
    version = repository.working_tree()
    assert "Add, with uncommitted changes in 3 files" in version.about
    repository.write(version, tmp_path / "tree")
    repository.write(repository.commit("more"), tmp_path / "commit")
    files = {str(path.relative_to(tmp_path / "tree")) for path in (tmp_path / "tree").rglob("*") if path.is_file()}
    assert files == {".gitignore", "case.py", "new ü.txt", "pyproject.toml", "seesaw/__init__.py"}
    assert (tmp_path / "tree" / "case.py").read_text() == "changed"
    assert (tmp_path / "commit" / "gone.txt").read_text() == "1"
    assert "Go up" in (tmp_path / "commit" / "case.py").read_text()
    assert git(root, "worktree", "list").count("\n") == 0
    assert git(root, "stash", "list") == ""


def test_symbolic_links_are_copied_as_links_even_if_they_are_broken(tmp_path: Path) -> None:
    root = make_repository(tmp_path / "repository")
    (root / "same").symlink_to("case.py")
    (root / "data").symlink_to("/no/such/disk")
    repository = Repository(root)
    repository.write(repository.working_tree(), tmp_path / "tree")
    commit(root, "Link", tag="linked")
    repository.write(repository.working_tree(), tmp_path / "committed")
    for folder in (tmp_path / "tree", tmp_path / "committed"):
        assert (folder / "same").readlink() == Path("case.py")
        assert (folder / "data").readlink() == Path("/no/such/disk")


def test_a_clean_working_tree_has_no_changes(tmp_path: Path) -> None:
    assert "uncommitted" not in Repository(make_repository(tmp_path / "repository")).working_tree().about


def test_errors_name_the_ref_and_the_folder(tmp_path: Path) -> None:
    root = make_repository(tmp_path / "repository")
    with pytest.raises(UnknownVersion, match=r"v9: is no commit of .*repository; name a branch"):
        Repository(root).commit("v9")
    with pytest.raises(UnknownVersion, match="--help: is no commit"):
        Repository(root).commit("--help")
    with pytest.raises(UnknownVersion, match=r"is in no git repository .*; `rlcore bench` compares"):
        Repository(tmp_path)
    git(tmp_path, "init", "--quiet", "empty")
    with pytest.raises(UnknownVersion, match="HEAD: is no commit"):
        Repository(tmp_path / "empty").working_tree()
