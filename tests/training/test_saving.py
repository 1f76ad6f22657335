"""Tests of what a run saves: only finite weights, with the score of their own evaluation, synced, old before new."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch

from rlcore.checkpoints.checkpoint import Checkpoints
from rlcore.config import structure
from rlcore.errors import CheckpointError, Diverged
from rlcore.settings import TrainConfig
from rlcore.training.build import Assembly, assemble
from rlcore.training.inputs import Inputs
from rlcore.training.resume import save_beside
from rlcore_shard.parallel_files import StagedParts
from rlcore_testing.small import SAMPLES, make_gpt2, make_tokenizer


@pytest.fixture
def parts(tmp_path: Path) -> Iterator[Assembly]:
    settings = {
        "trainer": {"name": "sft", "batch_size": 2}, "run": {"root": str(tmp_path), "name": "mine", "steps": 9},
        "checkpoint": {"keep_best": 1, "keep_last": 1, "metric": "eval/reward/mean"},
        "eval": {"every": 1}, "loggers": ["jsonl"],
    }  # fmt: skip
    samples = [list(sample) for sample in SAMPLES]
    inputs = Inputs(model=make_gpt2(), tokenizer=make_tokenizer(), samples=samples, eval_samples=samples[:2])
    made = assemble(structure(TrainConfig, settings, where="test"), inputs, "test")
    yield made
    assert made.lock is not None
    made.lock.release()


def score_of(folder: Path) -> float | None:
    return json.loads((folder / "manifest.json").read_text())["score"]


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
@pytest.mark.parametrize("where", [0, -1])
def test_weights_that_are_not_finite_are_never_saved(parts: Assembly, number: float, where: int) -> None:
    parts.run.progress.step = 1
    parts.saver.checkpoint(parts.trainer)
    parts.saver.final(parts.trainer)
    model = parts.run.dir / "model/model.safetensors"
    before = model.read_bytes()
    name, weight = list(parts.trainer.policy().module.named_parameters())[where]
    with torch.no_grad():
        weight.view(-1)[-1] = number
    parts.run.progress.step = 2
    for save in (parts.saver.checkpoint, parts.saver.final):
        with pytest.raises(Diverged, match=f"step 2: weights of {name} are not finite.*checkpoint is of step 1"):
            save(parts.trainer)
    assert [path.name for path in (parts.run.dir / "checkpoints").iterdir()] == ["00000001"]
    assert model.read_bytes() == before


def test_a_checkpoint_has_the_score_of_an_evaluation_at_its_own_step_only(parts: Assembly) -> None:
    run, saver = parts.run, parts.saver
    run.progress.step = 1
    saver.note_evaluation({"eval/reward/mean": 5.0})
    assert score_of(saver.checkpoint(parts.trainer)) == 5.0
    run.progress.step = 2
    assert score_of(saver.checkpoint(parts.trainer)) is None
    run.progress.step = 3
    saver.note_evaluation({"eval/reward/mean": 1.0})
    assert score_of(saver.checkpoint(parts.trainer)) == 1.0
    assert sorted(path.name[-1] for path in (run.dir / "checkpoints").iterdir()) == ["1", "3"]


class Recorder:
    """Records syncs and renames, in order, by the last names of their paths."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.events: list[tuple[str, str]] = []
        fsync, rename = os.fsync, os.rename

        def record_sync(handle: int) -> None:
            self.events.append(("sync", Path(f"/proc/self/fd/{handle}").readlink().name))
            fsync(handle)

        def record_rename(source: Any, target: Any, **options: Any) -> None:
            self.events.append(("rename", f"{Path(source).name} {Path(target).name}"))
            rename(source, target, **options)

        monkeypatch.setattr(os, "fsync", record_sync)
        monkeypatch.setattr(os, "rename", record_rename)

    def index(self, kind: str, name: str) -> int:
        return self.events.index((kind, name))


def test_logs_are_synced_before_the_checkpoint_that_counts_their_steps(
    parts: Assembly, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts.run.progress.step = 4
    parts.run.loggers.metrics(4, {"loss": 1.0})
    recorder = Recorder(monkeypatch)
    parts.saver.checkpoint(parts.trainer)
    renamed = next(i for i, (kind, name) in enumerate(recorder.events) if kind == "rename" and "00000004" in name)
    assert recorder.index("sync", "metrics.jsonl") < renamed
    assert ("sync", "checkpoints") in recorder.events[renamed:]


@pytest.mark.parametrize("failure", [None, OSError(28, "No space left on device")])
def test_the_temporary_folder_of_parts_is_removed_also_if_the_checkpoint_cannot_be_written(
    parts: Assembly, monkeypatch: pytest.MonkeyPatch, failure: OSError | None
) -> None:
    folder = parts.run.dir / "checkpoints" / ".tmp-parts"
    folder.mkdir(parents=True)
    monkeypatch.setattr(parts.saver, "_stage", lambda *_: StagedParts(folder, failure=failure))
    with pytest.raises(CheckpointError, match="No space left") if failure else nullcontext():
        parts.saver.checkpoint(parts.trainer)
    assert not folder.exists()


def write_text(text: str) -> Any:
    def save(folder: Path) -> None:
        folder.mkdir()
        (folder / "weights").write_text(text)

    return save


def test_a_model_is_synced_before_it_takes_its_place_and_the_place_after(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "run/model"
    place.parent.mkdir()
    recorder = Recorder(monkeypatch)
    save_beside(write_text("new"), place)
    renamed = recorder.index("rename", ".tmp-model model")
    assert recorder.index("sync", "weights") < recorder.index("sync", ".tmp-model") < renamed
    assert ("sync", "run") in recorder.events[renamed:]


@pytest.mark.parametrize("fails", [".tmp-model", "model"])
def test_the_old_model_stays_until_the_new_one_is_in_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    place = tmp_path / "model"
    save_beside(write_text("old"), place)
    rename, seen = os.rename, []

    def failing(source: Any, target: Any, **options: Any) -> None:
        seen.append((tmp_path / "model/weights").exists() or (tmp_path / ".old-model/weights").exists())
        if Path(source).name == fails:
            raise OSError(5, "Input/output error")
        rename(source, target, **options)

    with monkeypatch.context() as patch:
        patch.setattr(os, "rename", failing)
        with pytest.raises(CheckpointError, match="Input/output error"):
            save_beside(write_text("new"), place)
    assert all(seen)
    assert (place / "weights").read_text() == "old"
    # A process that died between the two renames.
    place.rename(tmp_path / ".old-model")
    with pytest.raises(ZeroDivisionError):
        save_beside(lambda folder: 1 / 0, place)
    assert (place / "weights").read_text() == "old"
    save_beside(write_text("new"), place)
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
    assert (place / "weights").read_text() == "new"


@pytest.mark.parametrize(("mask", "mode"), [(0o022, 0o644), (0o007, 0o660), (0o077, 0o600)])
def test_all_files_of_a_run_follow_the_umask(tmp_path: Path, mask: int, mode: int) -> None:
    before = os.umask(mask)
    try:
        checkpoints = Checkpoints(tmp_path / "checkpoints")

        def fill(folder: Path) -> None:
            make_gpt2().save_pretrained(folder / "model")

        checkpoints.write(1, fill, manifest={})
        save_beside(make_gpt2().save_pretrained, tmp_path / "model")
    finally:
        os.umask(before)
    files = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(files) > 4
    assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {mode}
