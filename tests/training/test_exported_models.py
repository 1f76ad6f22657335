"""Tests of what plugins add to a trained model, and of its upload."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import rlcore
from rlcore.checkpoints.manifest import read_manifest
from rlcore.errors import ConfigError
from rlcore.hookspecs import Services
from rlcore.plugins import observers
from rlcore_testing.small import SAMPLES, make_gpt2, make_tokenizer


def train(folder: Path, *, run: Any = None, **given: Any) -> rlcore.Result:
    return rlcore.train(
        make_gpt2(), tokenizer=make_tokenizer(), trainer={"name": "sft", "batch_size": 4}, loggers=[],
        samples=[list(sample) for sample in SAMPLES],
        run={"root": str(folder), "name": "run", "steps": 2, **(run or {})}, **given,
    )  # fmt: skip


class Notices:
    """An observer that adds a file to a trained model."""

    def on_export(self, run: Any, folder: Path) -> None:
        (folder / "NOTICE").write_text(f"{run.step} steps\n")


class Shelf:
    """An uploader that records what it is given."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def check(self, repo: str, where: str) -> None:
        self.calls.append((repo, where))

    def push(self, folder: Path, repo: str, **options: Any) -> str:
        self.calls.append((folder.name, repo, options))
        return f"shelf/{repo}"


def test_a_file_that_an_observer_adds_to_a_trained_model_is_listed_in_its_manifest(tmp_path: Path) -> None:
    result = train(tmp_path, observers=[Notices()])
    result.save_pretrained(tmp_path / "saved")
    for folder in (result.run_dir / "model", tmp_path / "saved"):
        assert (folder / "NOTICE").read_text() == "2 steps\n"
        assert "NOTICE" in read_manifest(folder)["files"]


def test_a_run_that_is_to_push_its_model_is_refused_without_a_plugin_that_uploads(tmp_path: Path) -> None:
    said = "train: run.push_to_hub = 'me/walks': comes with rlcore-tools, which is installed, but disabled"
    with pytest.raises(ConfigError, match=said):
        train(tmp_path, run={"push_to_hub": "me/walks"}, plugins={"disable": ["rlcore-tools"]})
    assert not (tmp_path / "run").exists()


def test_a_plugin_uploads_the_model_of_a_run_and_of_its_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shelf = Shelf()
    monkeypatch.setattr(observers, "services", lambda: Services(uploader=lambda: shelf))
    result = train(tmp_path, run={"push_to_hub": "me/walks", "hub_private": True})
    assert result.push_to_hub("me/runs", token="t", revision="v2") == "shelf/me/runs"
    own = {"run": result.run_dir, "private": True, "token": None, "revision": None}
    later = {"run": result.run_dir, "private": None, "token": "t", "revision": "v2"}
    assert shelf.calls == [("me/walks", "train"), ("model", "me/walks", own), ("model", "me/runs", later)]
