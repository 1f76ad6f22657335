"""Helpers that write small checkpoints and list the content of their folder."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from rlcore.checkpoints.checkpoint import Checkpoints
from rlcore.checkpoints.state import save_state

PLUGINS = {"plugins": {"rlcore": "0.1.0", "rlcore-ppo": "0.1.0"}, "config": {"gen": {"temperature": 0.5}}}
FILES = ("trainer.safetensors", "model/config.json", "model/tokenizer.json", "rng/0.safetensors")


def fill_with(value: float) -> Callable[[Path], None]:
    def fill(folder: Path) -> None:
        (folder / "model").mkdir()
        (folder / "rng").mkdir()
        (folder / "model" / "config.json").write_text(json.dumps({"value": value}))
        (folder / "model" / "tokenizer.json").write_text("é" * 100, encoding="utf-8")
        save_state(folder / "trainer.safetensors", {"step": value, "moment": torch.full((50,), value)})
        save_state(folder / "rng" / "0.safetensors", torch.get_rng_state())

    return fill


def write(checkpoints: Checkpoints, step: int, score: float | None = None) -> Path:
    return checkpoints.write(step, fill_with(step), manifest=PLUGINS, score=score)


def steps(folder: Path) -> list[int]:
    return sorted(int(path.name) for path in folder.iterdir())


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "checkpoints"
