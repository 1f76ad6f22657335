from __future__ import annotations

from pathlib import Path

import pytest
from adapter_runs import train_two_steps
from gym_games import Fragile


@pytest.mark.slow
@pytest.mark.parametrize("isolate", ["none", "process"])
def test_grpo_trains_two_steps(tmp_path: Path, isolate: str) -> None:
    options = {"id": "gym_games:Fragile-v0", "options": {"max_episode_steps": 3}, "act": "gym_games:letters"}
    result = train_two_steps(tmp_path, {"name": "gymnasium", **options}, isolate=isolate)
    assert result.metrics["episode/turns"] == 3.0
    assert result.metrics["episode/truncated"] == result.metrics["eval/episode/truncated"] == 1.0
    assert result.metrics["environment/invalid"] == 0.0
    assert not Fragile.open  # every environment was closed
