"""Small runs for the tests of this folder; child processes import it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

import rlcore
from rlcore_testing.small import PROMPTS, make_llama, make_tokenizer, toy_reward

TRAINERS: dict[str, dict[str, Any]] = {
    "ppo": {"rollouts": 8, "batch_size": 4, "is_correction": "token_truncate"},
    "grpo": {"rollouts": 8, "num_generations": 4, "is_correction": "token_truncate"},
    "rft": {"generations": 3, "improve_steps": 2},
}


def train(
    folder: Path | str, trainer: str, ahead: int, *, run: dict[str, Any] | None = None,
    change: dict[str, Any] | None = None, **options: Any,
) -> Any:  # fmt: skip
    given: dict[str, Any] = {
        "prompts": list(PROMPTS), "reward_fn": toy_reward, "gen": {"max_new_tokens": 5}, "loggers": [],
        "tokenizer": make_tokenizer(),
    }  # fmt: skip
    named = {"name": trainer, "optimizer": {"lr": 1e-2}, **TRAINERS[trainer], **(change or {})}
    section = {
        "root": str(folder), "name": "run", "steps": 4, "report": False, "rollouts": "all", "asynchronous": ahead,
        **(run or {}),
    }  # fmt: skip
    return rlcore.train(make_llama(), trainer=named, run=section, **{**given, **options})


def rollouts(folder: Path | str) -> list[dict[str, Any]]:
    path = Path(folder) / "run" / "rollouts.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()]


def metrics(folder: Path | str) -> list[dict[str, Any]]:
    """Return the lines of metrics.jsonl without times and memory."""
    path = Path(folder) / "run" / "metrics.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    return [{k: v for k, v in line.items() if not k.startswith(("time", "perf/", "eval/time"))} for line in lines]


def weights(result: Any) -> list[torch.Tensor]:
    return [each.detach().clone() for each in result.policy.module.parameters()]


def trained(folder: str, trainer: str, steps: list[int]) -> dict[str, Any]:
    """Train for so many steps, in several parts, in this process, one of one or two."""
    for number in steps:
        result = train(folder, trainer, 1, run={"steps": number, "resume": "auto"})
    flat = [each.flatten().tolist() for each in weights(result)]
    return {"weights": flat, "rows": rollouts(folder) if result.run.ranks.is_main else []}
