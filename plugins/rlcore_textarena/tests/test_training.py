from __future__ import annotations

from pathlib import Path

import pytest

import rlcore
from rlcore_testing.small import make_llama, make_tokenizer


@pytest.mark.parametrize("isolate", ["none", "process"])
def test_grpo_trains_two_steps(tmp_path: Path, isolate: str) -> None:
    model = make_llama()
    model.config.max_position_embeddings = 2048  # rotary: it has no weights of positions
    result = rlcore.train(
        model, tokenizer=make_tokenizer(), trainer={"name": "grpo", "rollouts": 8, "num_generations": 4},
        environment={
            "name": "textarena", "id": "TicTacToe-v0", "players": 2, "opponent": "arena_players:takes_a_free_cell",
            "train_rows": 8, "eval_rows": 4,
        },
        data={"episodes": {"isolate": isolate}}, gen={"max_new_tokens": 3},
        run={"root": str(tmp_path), "name": "run", "steps": 2, "report": False}, loggers=[],
    )  # fmt: skip
    # The policy writes letters: two invalid moves, and the game is lost.
    assert result.metrics["episode/turns"] == result.metrics["eval/episode/turns"] == 2.0
    assert result.metrics["environment/invalid_move"] == 1.0
    assert result.metrics["reward/mean"] == result.metrics["eval/reward/mean"] == -1.0
