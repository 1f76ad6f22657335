"""Tests of `run.reward_timeout_s` in processes that train: they end, and a stop during a call is graceful."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from e2e_processes import inherited
from e2e_scenarios import save_model
from warm_python import WarmPython

Train = Callable[..., subprocess.CompletedProcess[str]]
CONFIG = """
trainer: {name: ppo, rollouts: 4, batch_size: 4, epochs: 1}
model: {path: base}
data: {prompts: [a, bc], reward_fn: "judges:hang"}
gen: {max_new_tokens: 4}
run: {root: runs, name: r, steps: 3, reward_timeout_s: 2, check_functions: false}
loggers: []
"""
JUDGES = """
import os, signal, time
from concurrent.futures import ThreadPoolExecutor
pool = ThreadPoolExecutor(1)

def quick(outputs): return [0.0] * len(outputs)
def hang(outputs): time.sleep(6000)
def hang_in_a_pool(outputs): return pool.submit(time.sleep, 6000).result()
def stopped(outputs):
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(0.3)
    return [0.0] * len(outputs)
def stopped_and_hanging(outputs):
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(6000)
"""


@pytest.fixture
def train(tmp_path: Path, warm_python: WarmPython) -> Train:
    save_model(tmp_path / "base")
    (tmp_path / "run.yaml").write_text(CONFIG)
    (tmp_path / "judges.py").write_text(JUDGES)

    def start(function: str, *overrides: str) -> subprocess.CompletedProcess[str]:
        words = ["-m", "rlcore", "train", "run.yaml", f"data.reward_fn=judges:{function}", *overrides]
        return warm_python.run(words, cwd=tmp_path, environment=inherited(), timeout_s=600)

    return start


@pytest.mark.slow
@pytest.mark.parametrize(
    "function", ["hang", "stopped_and_hanging", pytest.param("hang_in_a_pool", marks=pytest.mark.slow)]
)
def test_a_reward_that_never_returns_ends_the_process_with_its_name_and_the_batch(train: Train, function: str) -> None:
    done = train(function)
    assert done.returncode == 1
    said = f"RewardError: reward function '{function}' (step 1, batch of 4) did not return within run.reward_timeout"
    assert done.stderr.splitlines()[-1].startswith(said)


@pytest.mark.slow
def test_a_stop_while_a_reward_runs_finishes_the_step_and_saves(train: Train, tmp_path: Path) -> None:
    done = train("stopped", "run.reward_timeout_s=600")
    assert done.returncode == 0, done.stderr
    assert "SIGTERM: finishing step 1, then saving" in done.stderr
    assert (tmp_path / "runs/r/checkpoints/00000001/manifest.json").exists()


@pytest.mark.slow
def test_the_time_limit_applies_to_metric_functions_too(train: Train) -> None:
    done = train("quick", "data.metric_fn=judges:hang", "run.steps=1")
    assert done.returncode == 1
    said = "RewardError: metric function 'hang' (evaluation after step 1, batch of 2) did not return within"
    assert done.stderr.splitlines()[-1].startswith(said)
