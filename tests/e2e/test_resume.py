"""Tests of resuming: stopping a run in any way and resuming it in a new process gives the same result."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from e2e_processes import assert_same_run, lines, newest_checkpoint
from e2e_scenarios import save_model, train

STEPS = {"run": {"steps": 6}}
GO_ON = {"run": {"steps": 6, "resume": "auto"}}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("scenario", "first", "stop", "step"),
    [
        ("sft_config", {"run": {"steps": 3}}, "", 3),
        ("sft_folder", STEPS, "SIGTERM@2", 4),
        ("ppo_config", STEPS, "SIGINT@4", 3),
        ("ppo_module", STEPS, "SIGKILL@7", 4),
    ],
)
def test_resume_is_no_interruption(
    child: Callable, tmp_path: Path, scenario: str, first: dict, stop: str, step: int
) -> None:
    save_model(tmp_path / "base", dropout=0.1)
    train(scenario, tmp_path, "whole", STEPS)
    stopped = child(scenario, "parts", first, *([stop] if stop else []))
    assert stopped.returncode == (-9 if "KILL" in stop else 0), stopped.stderr
    if stop and "KILL" not in stop:
        assert f"{stop[:-2]}: finishing step" in stopped.stderr
    assert int(newest_checkpoint(tmp_path / "parts").name) == step
    resumed = child(scenario, "parts", GO_ON)
    assert resumed.returncode == 0, resumed.stderr
    assert f"step={step}" in resumed.stderr
    assert_same_run(tmp_path / "whole", tmp_path / "parts")


@pytest.mark.slow
def test_a_second_signal_ends_at_once(child: Callable, tmp_path: Path) -> None:
    # Calls 1 and 2 are the first two rounds, call 3 is the evaluation after them; call 4 is in the third round.
    stopped = child("ppo_config", "run", STEPS, "SIGINT+SIGINT@4")
    assert stopped.returncode == -signal.SIGINT
    assert "SIGINT: finishing step 3, then saving" in stopped.stderr
    assert "SIGINT again: stopping at once" in stopped.stderr
    assert [row["step"] for row in lines(tmp_path / "run/metrics.jsonl")] == [1, 2, 2]
    assert int(newest_checkpoint(tmp_path / "run").name) == 2
    assert not (tmp_path / "run/model").exists()
