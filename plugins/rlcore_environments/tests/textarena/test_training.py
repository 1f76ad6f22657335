from __future__ import annotations

from pathlib import Path

import pytest
from adapter_runs import train_two_steps


@pytest.mark.slow
@pytest.mark.parametrize("isolate", ["none", "process"])
def test_grpo_trains_two_steps(tmp_path: Path, isolate: str) -> None:
    options = {"id": "TicTacToe-v0", "players": 2, "opponent": "arena_players:takes_a_free_cell"}
    result = train_two_steps(tmp_path, {"name": "textarena", **options}, isolate=isolate)
    # The policy writes letters: two invalid moves, and the game is lost.
    assert result.metrics["episode/turns"] == result.metrics["eval/episode/turns"] == 2.0
    assert result.metrics["environment/invalid_move"] == 1.0
    assert result.metrics["reward/mean"] == result.metrics["eval/reward/mean"] == -1.0
