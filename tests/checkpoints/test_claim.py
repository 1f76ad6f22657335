"""Tests of claims: a claim that fails or whose process dies leaves one whole run, and one process claims a run."""

from __future__ import annotations

import itertools
import shutil
from pathlib import Path

import pytest
from claiming import build, claimed, left_in, make_run
from kill_points import killed_at

from rlcore.checkpoints.run_folder import RunDir, set_aside
from rlcore.errors import CheckpointError, ConfigError, RunInUse


def fail_to_build(root: Path, **run: object) -> None:
    with claimed(root, **run) as found:
        if not found.is_continued:
            (found.path / "start").mkdir()
            (found.path / "start/half").write_text("")
        raise ZeroDivisionError


@pytest.mark.parametrize("exists", [False, True])
def test_a_run_that_cannot_be_built_does_not_change_its_folder(tmp_path: Path, *, exists: bool) -> None:
    folder = tmp_path / "mine"
    if exists:
        folder.mkdir()
    with pytest.raises(ZeroDivisionError):
        fail_to_build(tmp_path)
    assert folder.exists() is exists
    if exists:
        assert list(folder.iterdir()) == []


@pytest.mark.parametrize("run", [{"overwrite": True}, {"resume": "auto"}])
def test_a_run_that_cannot_be_built_leaves_the_earlier_one(tmp_path: Path, run: dict[str, object]) -> None:
    folder = make_run(tmp_path, 1, 2).path
    before = left_in(folder)
    with pytest.raises(ZeroDivisionError):
        fail_to_build(tmp_path, **run)
    assert left_in(folder) == before
    found = build(tmp_path, resume="auto")  # the lock is free
    assert found.checkpoint is not None


@pytest.mark.parametrize("place", [{"name": "\ud800"}, {"resume": "a\0b"}])
def test_names_that_no_folder_can_have_are_refused(tmp_path: Path, place: dict[str, str]) -> None:
    with pytest.raises((ConfigError, CheckpointError), match=r"cannot be created or read|there is no checkpoint here"):
        build(tmp_path, **place)


def test_a_tilde_in_the_root_is_the_users_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    assert build(Path("~/runs")).path == tmp_path / "runs/mine"
    assert make_run(Path("~/runs"), 1, overwrite=True).path == tmp_path / "runs/mine"
    assert build(Path("~/runs"), resume="~/runs/mine/checkpoints/00000001", name="more").checkpoint is not None


def test_a_disk_that_is_full_at_the_start_is_named_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: RunDir, *_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(RunDir, "write_config", fail)
    with pytest.raises(ConfigError, match=r"mine/config.yaml cannot be written: No space left on device: free some"):
        build(tmp_path)
    assert not (tmp_path / "mine").exists()


def test_a_run_folder_belongs_to_one_process_until_it_is_released(tmp_path: Path) -> None:
    folder = make_run(tmp_path, 1).path
    before = left_in(folder)
    with claimed(tmp_path, resume="auto") as found:
        for run in ({"resume": "auto"}, {"overwrite": True}):
            with pytest.raises(RunInUse):
                build(tmp_path, **run)
    assert left_in(folder).keys() == before.keys()
    with pytest.raises(RunInUse):
        build(tmp_path, resume="auto")
    assert found.lock is not None
    found.lock.release()
    build(tmp_path, resume="auto")


@pytest.mark.slow
def test_a_new_run_killed_at_any_operation_is_taken_up(tmp_path: Path) -> None:
    for number in itertools.count(1):
        root = tmp_path / str(number)
        if not killed_at(number, root, lambda root=root: build(root, text="new", resume="auto")):
            break
        build(root, text="new", resume="auto")
        assert left_in(root / "mine").keys() == {"config.yaml", "notes.txt"}, number
    assert number > 8


@pytest.mark.slow
def test_an_overwrite_killed_at_any_operation_leaves_one_of_the_two_runs(tmp_path: Path) -> None:
    old = left_in(make_run(tmp_path / "old", 1).path)
    outcomes = []
    for number in itertools.count(1):
        first, second = tmp_path / f"{number}a", tmp_path / f"{number}b"
        shutil.copytree(tmp_path / "old", first)
        if not killed_at(number, first, lambda root=first: build(root, text="new", overwrite=True)):
            break
        shutil.copytree(first, second)
        build(first, text="new", overwrite=True)
        assert left_in(first / "mine").keys() == {"config.yaml", "notes.txt"}, number
        found, left = build(second, resume="auto"), left_in(second / "mine")
        outcomes.append(found.checkpoint is not None)
        if found.checkpoint is not None:
            assert {name: data for name, data in left.items() if name != "config.yaml"} == {
                name: data for name, data in old.items() if name != "config.yaml"
            }, number
        else:
            assert left.keys() == {"config.yaml", "notes.txt"}, number
    # Until the new run is built the old one is kept, and from then on the new one.
    assert outcomes == sorted(outcomes, reverse=True)
    assert 10 < outcomes.count(True) < len(outcomes)


@pytest.mark.slow
def test_a_recovery_killed_at_any_operation_is_finished_by_the_next_process(tmp_path: Path) -> None:
    place = make_run(tmp_path / "old", 1)
    old = left_in(place.path)
    set_aside(place.path)
    place.config.write_bytes(old["config.yaml"])
    place.start.mkdir()
    (place.start / "half").write_text("")
    for number in itertools.count(1):
        root = tmp_path / str(number)
        shutil.copytree(tmp_path / "old", root)
        if not killed_at(number, root, lambda root=root: build(root, resume="auto")):
            break
        found, left = build(root, resume="auto"), left_in(root / "mine")
        assert found.checkpoint is not None, number
        assert left.keys() == old.keys(), number
        assert all(left[name] == old[name] for name in old if name != "config.yaml"), number
    assert number > 12
