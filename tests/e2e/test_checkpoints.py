"""Tests of checkpoints in whole runs: damage, a full disk, retention."""

from __future__ import annotations

import errno
import io
import json
import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from e2e_processes import assert_same_run, lines, newest_checkpoint
from e2e_scenarios import train
from kill_points import fork, wait

from rlcore import errors
from rlcore.checkpoints.claim import RunLock


def names(run: Path) -> list[int]:
    return sorted(int(path.name) for path in (run / "checkpoints").iterdir())


def flip_a_byte(path: Path) -> None:
    contents = bytearray(path.read_bytes())
    contents[len(contents) // 2] ^= 1
    path.write_bytes(contents)


@pytest.mark.slow
def test_resuming_skips_a_damaged_checkpoint(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    train("sft_config", tmp_path, "whole", {"run": {"steps": 6}})
    train("sft_config", tmp_path, "parts", {"run": {"steps": 4}})
    flip_a_byte(newest_checkpoint(tmp_path / "parts") / "model" / "model.safetensors")
    capsys.readouterr()
    train("sft_config", tmp_path, "parts", {"run": {"steps": 6, "resume": "auto"}})
    said = capsys.readouterr().err
    assert "checkpoint is damaged; trying the one before" in said
    assert "00000004" in said
    assert "step=2" in said
    assert_same_run(tmp_path / "whole", tmp_path / "parts")


def test_a_damaged_checkpoint_that_was_named_is_an_error(tmp_path: Path) -> None:
    train("sft_config", tmp_path, "run", {"run": {"steps": 2}})
    checkpoint = newest_checkpoint(tmp_path / "run")
    flip_a_byte(checkpoint / "trainer.safetensors")
    with pytest.raises(errors.CheckpointError, match=r"trainer.safetensors: is damaged"):
        train("sft_config", tmp_path, "other", {"run": {"steps": 6, "resume": str(checkpoint)}})
    assert not (tmp_path / "other").exists()


@pytest.mark.slow
def test_a_run_with_an_unreadable_checkpoint_can_be_resumed_once_it_is_readable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    train("sft_config", tmp_path, "whole", {"run": {"steps": 6}})
    train("sft_config", tmp_path, "parts", {"run": {"steps": 4}})
    run = tmp_path / "parts"
    weights, before, real = newest_checkpoint(run) / "model/model.safetensors", tree(run), io.open

    def fail(path: Any, *rest: Any, **options: Any) -> Any:
        if Path(str(path)) == weights:
            raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))
        return real(path, *rest, **options)

    with monkeypatch.context() as patch:
        patch.setattr(io, "open", fail)
        with pytest.raises(errors.CheckpointError, match=r"model\.safetensors: cannot be read: .*errno 5, EIO"):
            train("sft_config", tmp_path, "parts", {"run": {"steps": 6, "resume": "auto"}})
    assert tree(run) == before
    train("sft_config", tmp_path, "parts", {"run": {"steps": 6, "resume": "auto"}})
    assert_same_run(tmp_path / "whole", run)


def tree(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_second_process_in_a_run_is_refused(tmp_path: Path) -> None:
    train("sft_config", tmp_path, "run", {"run": {"steps": 2}})
    before = tree(tmp_path / "run")
    first = fork(lambda: hold(tmp_path / "run"))
    while not (tmp_path / "held").exists():
        time.sleep(0.01)
    for changes in ({"resume": "auto"}, {"overwrite": True}):
        with pytest.raises(errors.RunInUse, match=f"is in use by process {first} on host {socket.gethostname()}"):
            train("sft_config", tmp_path, "run", {"run": {"steps": 4, **changes}})
    os.kill(first, signal.SIGKILL)
    wait(first)
    assert {name: data for name, data in tree(tmp_path / "run").items() if name != ".lock-owner"} == before
    train("sft_config", tmp_path, "run", {"run": {"steps": 4, "resume": "auto"}})
    assert [row["step"] for row in lines(tmp_path / "run/metrics.jsonl")] == [1, 2, 2, 3, 4, 4]


def hold(run: Path) -> None:
    lock = RunLock(run)
    (run.parent / "held").write_text("")
    time.sleep(60)
    lock.release()


@pytest.mark.parametrize("damage", ["flipped", "missing", "another"])
def test_resuming_with_a_changed_starting_model_is_refused(tmp_path: Path, damage: str) -> None:
    train("ppo_config", tmp_path, "run", {"run": {"steps": 2}})
    start = tmp_path / "run/start"
    if damage == "flipped":
        flip_a_byte(start / "model.safetensors")
    elif damage == "missing":
        shutil.rmtree(start)
    else:
        train("ppo_config", tmp_path, "other", {"run": {"steps": 1, "seed": 5}})
        shutil.rmtree(start)
        shutil.copytree(tmp_path / "other/start", start)
    before = tree(tmp_path / "run")
    words = {"flipped": "model.safetensors: is damaged", "missing": "has no manifest", "another": "another model"}
    for name, resume in (("run", "auto"), ("branch", str(newest_checkpoint(tmp_path / "run")))):
        with pytest.raises(errors.DamagedCheckpoint, match=rf"start.*{words[damage]}.*model before training.*restore"):
            train("ppo_config", tmp_path, name, {"run": {"steps": 4, "resume": resume}})
    assert tree(tmp_path / "run") == before
    assert not (tmp_path / "branch").exists()


@pytest.mark.slow
def test_a_run_branches_off_a_named_checkpoint(tmp_path: Path) -> None:
    train("ppo_config", tmp_path, "whole", {"run": {"steps": 4}, "checkpoint": {"keep_last": 9}})
    named = {"run": {"steps": 4, "resume": str(tmp_path / "whole/checkpoints/00000002")}}
    train("ppo_config", tmp_path, "branch", named)
    assert lines(tmp_path / "branch/metrics.jsonl") == [
        row for row in lines(tmp_path / "whole/metrics.jsonl") if row["step"] > 2
    ]
    # The branch also stores the model before training, as its own reference.
    train("ppo_config", tmp_path, "branch", {"run": {"steps": 5, "resume": "auto"}})
    assert [row["step"] for row in lines(tmp_path / "branch/metrics.jsonl")] == [3, 4, 4, 5]


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    place = tmp_path / "disk"
    place.mkdir()
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=400k", "tmpfs", str(place)], capture_output=True, check=False
    )
    if done.returncode:
        pytest.skip("a small file system cannot be mounted here")
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


@pytest.mark.slow
def test_a_full_disk_leaves_the_last_good_checkpoint(small_disk: Path, capsys: pytest.CaptureFixture[str]) -> None:
    changes = {"run": {"steps": 9}, "checkpoint": {"every": 1, "keep_last": 9}}
    with pytest.raises(errors.CheckpointError, match=r"could not be written.*No space left.*run\.resume=auto"):
        train("sft_config", small_disk, "run", changes)
    assert "checkpoint not written; the run continues" in capsys.readouterr().err
    good = names(small_disk / "run")
    assert good == list(range(1, len(good) + 1))
    assert 1 <= len(good) < 9
    subprocess.run(["mount", "-o", "remount,size=20m", str(small_disk)], check=True)
    done = train(
        "sft_config", small_disk, "run", {"run": {"steps": 9, "resume": "auto"}, "checkpoint": {"keep_last": 1}}
    )
    assert done.run.step == 9
    assert f"step={good[-1]}" in capsys.readouterr().err
    assert names(small_disk / "run") == [9]
    train("sft_config", small_disk, "whole", {"run": {"steps": 9}})
    assert lines(small_disk / "run/metrics.jsonl")[-1] == lines(small_disk / "whole/metrics.jsonl")[-1]


@pytest.mark.slow
def test_the_last_and_the_best_checkpoints_are_kept(tmp_path: Path) -> None:
    for mode, pick in (("max", max), ("min", min)):
        changes = {
            "run": {"steps": 8}, "eval": {"every": 2},
            "checkpoint": {"every": 0, "keep_last": 1, "keep_best": 1, "mode": mode, "metric": "eval/chars"},
            "trainer": {"optimizer": {"lr": 1e-2}},
        }  # fmt: skip
        train("ppo_config", tmp_path, mode, changes)
        rows = [row for row in lines(tmp_path / mode / "metrics.jsonl") if "eval/chars" in row]
        best = pick(reversed(rows), key=lambda row: row["eval/chars"])
        assert names(tmp_path / mode) == sorted({best["step"], 8})
        manifest = json.loads((tmp_path / mode / f"checkpoints/{best['step']:08d}/manifest.json").read_text())
        assert manifest["score"] == best["eval/chars"]


def test_resuming_a_finished_run_adds_nothing(child: Callable, tmp_path: Path) -> None:
    changes = {"run": {"steps": 3}, "eval": {"at_end": True}}
    train("sft_config", tmp_path, "run", changes)
    before = [(tmp_path / "run" / name).read_text() for name in ("metrics.jsonl", "completions.jsonl")]
    again = train("sft_config", tmp_path, "run", {"run": {"steps": 3, "resume": "auto"}, "eval": {"at_end": True}})
    assert before == [(tmp_path / "run" / name).read_text() for name in ("metrics.jsonl", "completions.jsonl")]
    assert "eval/loss" in again.metrics
