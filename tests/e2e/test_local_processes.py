"""Tests of `rlcore train ... run.processes=2`."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from e2e_processes import newest_checkpoint, run_process

from rlcore.testing.small import make_llama, make_tokenizer

CONFIG = """
trainer: {name: ppo, rollouts: 8, batch_size: 4}
model: {path: model}
data: {prompts: [ab, c, d, e], reward_fn: "rewards:reward"}
gen: {max_new_tokens: 4}
run: {steps: 3, processes: 2}
checkpoint: {every: 1}
"""
REWARDS = """
import os
def reward(outputs):
    if os.environ.get("RANK") == "1" and os.environ.get("FAIL") == "raise":
        raise ValueError("no such word")
    return [float(len(output)) for output in outputs]
"""
RLCORE = [sys.executable, "-m", "rlcore", "train", "run.yaml"]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    make_llama().save_pretrained(tmp_path / "model")
    make_tokenizer().save_pretrained(tmp_path / "model")
    (tmp_path / "run.yaml").write_text(CONFIG)
    (tmp_path / "rewards.py").write_text(REWARDS)
    return tmp_path


@pytest.mark.slow
def test_a_command_starts_its_processes_and_shows_an_error_once(folder: Path) -> None:
    done = run_process([*RLCORE, "run.name=one"], cwd=folder, PYTHONPATH=str(folder))
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("step 3/3") == 1
    assert '"world": 2' in (newest_checkpoint(folder / "runs/one") / "manifest.json").read_text()
    done = run_process([*RLCORE, "run.name=two"], cwd=folder, PYTHONPATH=str(folder), FAIL="raise")
    assert done.returncode == 1
    assert done.stderr.count("no such word") == 1
    assert "RanksError" not in done.stderr
    assert "Traceback" not in done.stderr
