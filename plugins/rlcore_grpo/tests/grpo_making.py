"""Trainers of GRPO with a tiny model, and the gradients of their optimizer steps, for the tests of this folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from rlcore.config import structure
from rlcore.settings import TrainConfig
from rlcore.training.build import assemble
from rlcore.training.inputs import Inputs
from rlcore_testing.small import EOS, PROMPTS, make_llama, make_tokenizer

ENDS = [EOS, 3, 7, 11, 19]
SIZE = 4


def halves(outputs: list[str]) -> list[float]:
    return [len(output) * 0.5 - output.count("a") for output in outputs]


def make(
    folder: Path, model: Any = None, *, gen: Any = None, prompts: Any = PROMPTS, reward_fn: Any = halves, **options: Any
) -> Any:
    settings = {
        "trainer": {"name": "grpo", "rollouts": 12, "num_generations": SIZE, "optimizer": {"lr": 1e-2}, **options},
        "gen": {"max_new_tokens": 6, "eos_token_ids": ENDS, **(gen or {})},
        "run": {"root": str(folder), "steps": 3},
        "loggers": [],
    }
    given = Inputs(model=model or make_llama(), tokenizer=make_tokenizer(), prompts=list(prompts), reward_fn=reward_fn)
    return assemble(structure(TrainConfig, settings, where="test"), given, "test").trainer


def gradients(trainer: Any, batch: Any, monkeypatch: pytest.MonkeyPatch) -> dict[str, torch.Tensor]:
    monkeypatch.setattr(trainer.updater, "step", lambda *_: None)
    trainer.update(batch)
    found = {n: p.grad.clone() for n, p in trainer.policy().module.named_parameters() if p.grad is not None}
    trainer.updater.optimizer.zero_grad()
    return found


def assert_same(seen: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert seen
    assert set(seen) == set(expected)
    for name, gradient in expected.items():
        assert torch.allclose(seen[name], gradient, atol=2e-6, rtol=1e-4), name
