"""A run with an environment that is killed while it samples a round goes on as if it had not been interrupted."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from e2e_processes import inherited
from warm_python import WarmPython

KILL_EPISODES = str(Path(__file__).with_name("kill_episodes.py"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("trainer", "kills"),
    [("grpo", 2), pytest.param("ppo", 8, marks=pytest.mark.nightly), pytest.param("rft", 8, marks=pytest.mark.nightly)],
)
def test_a_run_killed_inside_a_round_of_episodes_is_resumed_exactly(
    warm_python: WarmPython, tmp_path: Path, trainer: str, kills: int
) -> None:
    """Metrics, completions, rollouts, weights and states are bitwise those of the uninterrupted run."""
    done = warm_python.run([KILL_EPISODES, trainer, str(kills)], cwd=tmp_path, environment=inherited(), timeout_s=600)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["turns"] > 5 * kills
    assert len({*found["finished_steps"]}) >= 2  # killed in the first round and in later ones
