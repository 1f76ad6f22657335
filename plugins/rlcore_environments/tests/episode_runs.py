"""Short runs with an environment, and what they left behind."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

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


def at(folder: Path, **run: Any) -> dict[str, Any]:
    return {"root": str(folder), "name": "run", "report": False, **run}


def constant(outputs: Any) -> list[float]:
    return [1.0] * len(outputs)


class Fails(Echo):
    """Half of the rows fail at the second turn."""

    def step(self, turn: Any) -> Any:
        if turn.index == 1 and self.seed % 2:
            raise OSError("away")
        return super().step(turn)
