"""Tests of killed runs: whenever a run is killed, resuming it gives bit for bit the run that was not interrupted."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from e2e_processes import inherited
from warm_python import WarmPython

KILL_RUNS = str(Path(__file__).with_name("kill_runs.py"))
TRAINERS = ["sft", "ppo", "ilql", "rft"]


def kill(warm_python: WarmPython, folder: Path, *arguments: str) -> dict[str, int]:
    done = warm_python.run([KILL_RUNS, *arguments], cwd=folder, environment=inherited(), timeout_s=3000)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("trainer", "phase", "first"),
    [("sft", "created", 16), ("ppo", "overwritten", 12), ("ilql", "resumed", 6), ("rft", "created", 8)],
)
def test_a_run_killed_in_some_states_of_its_files_is_resumed_exactly(
    warm_python: WarmPython, tmp_path: Path, trainer: str, phase: str, first: int
) -> None:
    counts = kill(warm_python, tmp_path, "sweep", trainer, "--phases", phase, "--first", str(first), "--every", "25")
    assert counts[phase] >= 1


@pytest.mark.nightly
@pytest.mark.parametrize("phase", ["created", "overwritten", "resumed"])
@pytest.mark.parametrize("trainer", TRAINERS)
def test_a_run_killed_in_any_state_of_its_files_is_resumed_exactly(
    warm_python: WarmPython, tmp_path: Path, trainer: str, phase: str
) -> None:
    counts = kill(warm_python, tmp_path, "sweep", trainer, "--phases", phase)
    assert counts[phase] > 30


@pytest.mark.nightly
def test_runs_killed_at_random_times_are_resumed_exactly(warm_python: WarmPython, tmp_path: Path) -> None:
    counts = kill(warm_python, tmp_path, "random", "12", "--seed", "1")
    assert sum(counts["kills"].values()) == 12
