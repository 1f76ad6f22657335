from __future__ import annotations

from pathlib import Path

import pytest
from gym_games import Fragile

import rlcore
from rlcore_testing.small import make_llama, make_tokenizer


@pytest.mark.parametrize("isolate", ["none", "process"])
def test_grpo_trains_two_steps(tmp_path: Path, isolate: str) -> None:
    model = make_llama()
    model.config.max_position_embeddings = 1024  # rotary: it has no weights of positions
    result = rlcore.train(
        model, tokenizer=make_tokenizer(), trainer={"name": "grpo", "rollouts": 8, "num_generations": 4},
        environment={
            "name": "gymnasium", "id": "gym_games:Fragile-v0", "options": {"max_episode_steps": 3}, "train_rows": 8,
            "eval_rows": 4, "act": "gym_games:letters",
        },
        data={"episodes": {"isolate": isolate}}, gen={"max_new_tokens": 3},
        run={"root": str(tmp_path), "name": "run", "steps": 2, "report": False}, loggers=[],
    )  # fmt: skip
    assert result.metrics["episode/turns"] == 3.0
    assert result.metrics["episode/truncated"] == result.metrics["eval/episode/truncated"] == 1.0
    assert result.metrics["environment/invalid"] == 0.0
    assert not Fragile.open  # every environment was closed
