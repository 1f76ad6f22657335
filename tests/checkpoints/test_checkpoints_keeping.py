"""Tests of checkpoint retention: the newest and the best checkpoints are kept."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path
from typing import Any

import pytest
from checkpoint_making import PLUGINS, fill_with, folder, steps, write

from rlcore.checkpoints.checkpoint import Checkpoints
from rlcore.checkpoints.state import load_state
from rlcore.errors import CheckpointError

__all__ = ["folder"]  # a fixture


@pytest.mark.parametrize(
    ("keep_last", "keep_best", "mode", "scores", "kept"),
    [
        (1, 0, "max", [1, 2, 3], [3]),
        (2, 0, "max", [1, 2, 3], [2, 3]),
        (5, 0, "max", [1, 2, 3], [1, 2, 3]),
        (1, 1, "max", [9, 2, 3], [1, 3]),
        (1, 1, "min", [9, 2, 3, 4], [2, 4]),
        (1, 2, "max", [9, 1, 8, 2, 0], [1, 3, 5]),
        (1, 1, "max", [5, 5, 1], [2, 3]),
        (1, 1, "min", [5, 5, 8], [2, 3]),
        (1, 1, "max", [5, float("nan"), 1, 0], [1, 4]),
        (1, 1, "min", [float("nan"), 5, float("nan"), 6], [2, 4]),
        (1, 1, "max", [None, None, None], [3]),
        (1, 1, "max", [None, -4, None], [2, 3]),
        (2, 2, "max", [1, 2, 3, 4], [3, 4]),
    ],
)
def test_the_newest_and_the_best_are_kept(
    folder: Path, keep_last: int, keep_best: int, mode: Any, scores: list[float | None], kept: list[int]
) -> None:
    for step, score in enumerate(scores, start=1):
        # A new manager each time, as if the run were resumed after every step: all state is in the folder.
        write(Checkpoints(folder, keep_last, keep_best, mode), step, score)
    assert steps(folder) == kept


def test_of_a_linked_checkpoint_the_link_is_pruned_and_its_target_stays(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    elsewhere = tmp_path / "elsewhere"
    for step in (1, 2):
        write(Checkpoints(folder), step)
        shutil.move(folder / f"{step:08d}", elsewhere / f"{step}")
        (folder / f"{step:08d}").symlink_to(elsewhere / f"{step}")
    before = sorted(path.relative_to(elsewhere) for path in elsewhere.rglob("*"))
    write(Checkpoints(folder, keep_last=1), 2)  # replaces a link
    write(Checkpoints(folder, keep_last=1), 3)
    assert steps(folder) == [3]
    assert [path.name for path in folder.iterdir()] == ["00000003"]
    assert sorted(path.relative_to(elsewhere) for path in elsewhere.rglob("*")) == before
    assert capsys.readouterr().err == ""


def test_a_link_that_a_dead_process_was_pruning_goes_and_its_target_stays(folder: Path, tmp_path: Path) -> None:
    write(Checkpoints(folder), 1)
    shutil.copytree(folder / "00000001", tmp_path / "elsewhere")
    for name in (".tmp-00000002-1-gone", ".old-00000001"):
        (folder / name).symlink_to(tmp_path / "elsewhere")
    Checkpoints(folder).remove_unfinished()
    assert [path.name for path in folder.iterdir()] == ["00000001"]
    assert (tmp_path / "elsewhere" / "manifest.json").is_file()


def test_keeping_no_checkpoint_is_refused(folder: Path) -> None:
    with pytest.raises(CheckpointError, match="keep_last = 0"):
        Checkpoints(folder, keep_last=0)


def test_checkpoints_after_the_resumed_step_are_removed_with_the_next_write(folder: Path) -> None:
    checkpoints = Checkpoints(folder, keep_last=3)
    for step in (10, 20, 30):
        write(checkpoints, step)
    write(checkpoints, 15)
    assert steps(folder) == [10, 15]


def test_a_checkpoint_of_a_step_that_is_repeated_is_replaced(folder: Path) -> None:
    checkpoints = Checkpoints(folder)
    write(checkpoints, 5, score=1.0)
    path = checkpoints.write(5, fill_with(77), manifest=PLUGINS, score=2.0)
    found = checkpoints.open(path)
    assert found.score == 2.0
    assert load_state(path / "trainer.safetensors")["step"] == 77
    assert steps(folder) == [5]


def test_pruning_leaves_other_files_and_folders(folder: Path) -> None:
    (folder / "notes").mkdir(parents=True)
    (folder / "12 old").mkdir()
    (folder / "7").write_text("a file")
    checkpoints = Checkpoints(folder, keep_last=1)
    write(checkpoints, 1)
    write(checkpoints, 2)
    assert {path.name for path in folder.iterdir()} == {"notes", "12 old", "7", "00000002"}


def test_an_old_checkpoint_that_cannot_be_removed_causes_only_a_warning(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoints = Checkpoints(folder, keep_last=1)
    write(checkpoints, 1)
    real = shutil.rmtree

    def rmtree(path: Path, **options: Any) -> None:
        if path.name.endswith("gone"):
            raise OSError(errno.EBUSY, "busy")
        real(path, **options)

    monkeypatch.setattr(shutil, "rmtree", rmtree)
    assert write(checkpoints, 2).name == "00000002"
    assert "could not be removed" in capsys.readouterr().err


def test_a_checkpoint_whose_manifest_is_gone_is_neither_the_best_nor_deleted(folder: Path) -> None:
    checkpoints = Checkpoints(folder, keep_last=1, keep_best=1)
    (write(checkpoints, 1, score=9.0) / "manifest.json").unlink()
    write(checkpoints, 2, score=1.0)
    write(checkpoints, 3, score=0.0)
    assert steps(folder) == [1, 2, 3]


def test_the_best_checkpoint_of_abandoned_steps_is_deleted(folder: Path) -> None:
    write(Checkpoints(folder, keep_last=3), 10, score=9.0)
    write(Checkpoints(folder, keep_last=3), 20, score=99.0)
    write(Checkpoints(folder, keep_last=1, keep_best=1), 15, score=1.0)
    assert steps(folder) == [10, 15]


def test_a_damaged_checkpoint_is_not_the_best(folder: Path) -> None:
    checkpoints = Checkpoints(folder, keep_last=9)
    for step, score in enumerate([5.0, 9.0, 1.0], start=1):
        write(checkpoints, step, score)
    (folder / "00000002/model/config.json").write_text("{}")
    write(Checkpoints(folder, keep_last=1, keep_best=1), 4, score=0.0)
    assert steps(folder) == [1, 2, 4]
