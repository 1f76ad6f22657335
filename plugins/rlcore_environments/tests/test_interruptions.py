"""A run that is killed or interrupted while a round of episodes is played goes on exactly."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import interrupted_game
import pytest
import torch
from episode_runs import lines
from warm_python import WarmPython


@pytest.mark.slow  # it starts processes
@pytest.mark.parametrize(
    ("signals", "code", "num_rounds"),
    [("SIGKILL 60", -signal.SIGKILL, 2), ("SIGINT 60", 0, 3), ("SIGINT 60 68", -signal.SIGINT, 2)],
    ids=["killed", "interrupted, so that the round is finished", "interrupted twice"],
)
def test_a_run_that_ends_in_the_middle_of_a_round_of_episodes_goes_on_exactly(
    signals: str, code: int, num_rounds: int, tmp_path: Path, warm_python: WarmPython
) -> None:
    """Turns 60 and 68 are the second and the third one of an episode of the third round."""
    parts = tmp_path / "parts"
    parts.mkdir()
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent), interrupted_game.AT: signals}
    done = warm_python.run([interrupted_game.__file__], cwd=parts, environment=environment)
    assert done.returncode == code, done.stderr[-3000:]
    assert len((parts / "run" / "metrics.jsonl").read_text().splitlines()) == num_rounds
    whole = interrupted_game.train(tmp_path / "whole")
    resumed = interrupted_game.train(parts, resume="auto")
    assert lines(whole, "rollouts.jsonl") == lines(resumed, "rollouts.jsonl")
    mine, other = (dict(each.policy.module.named_parameters()) for each in (whole, resumed))
    assert all(torch.equal(mine[name], other[name]) for name in mine)
