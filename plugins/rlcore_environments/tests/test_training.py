"""Trainers learn from episodes as from single turns."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from env_games import TEMPLATE, Echo

import rlcore
from rlcore_testing.small import make_gpt2, make_tokenizer

TRAINERS: dict[str, dict[str, Any]] = {
    "ppo": {"rollouts": 4, "batch_size": 4, "epochs": 1},
    "grpo": {"rollouts": 8, "num_generations": 4},
    "rft": {"generations": 4, "prompts": 2, "batch_size": 4},
    "reinforce": {"rollouts": 4},
}


def run(folder: Path, **given: Any) -> rlcore.training.api.Result:
    tokenizer = make_tokenizer()
    tokenizer.chat_template = TEMPLATE
    options: dict[str, Any] = {
        "environment": Echo, "prompts": [f"{letter}b" for letter in "abcd"], "gen": {"max_new_tokens": 3},
        "run": {"root": str(folder), "name": "run", "steps": 2, "report": False}, "loggers": [], "tokenizer": tokenizer,
    }  # fmt: skip
    return rlcore.train(make_gpt2(), **{**options, **given})


def lines(result: Any, name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (result.run_dir / name).read_text().splitlines()]


@pytest.mark.parametrize("name", TRAINERS)
def test_a_trainer_learns_from_episodes_without_a_reward_function(name: str, tmp_path: Path) -> None:
    result = run(tmp_path, trainer={"name": name, **TRAINERS[name]})
    assert result.metrics["episode/turns"] == 3.0
    assert result.metrics["episode/done"] == result.metrics["episode/success"] == 1.0
    assert result.metrics["eval/episode/turns"] == 3.0
    (first, *_) = lines(result, "rollouts.jsonl")
    said = [(each["role"], each["content"]) for each in first["transcript"]]
    assert [role for role, _ in said] == ["assistant", "user"] * 3
    total = sum(each.get("reward", 0.0) for each in first["transcript"])
    assert first["reward"] == total == sum(text.count("a") for role, text in said if role == "assistant")
