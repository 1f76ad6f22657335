"""Trainers of DPO with a tiny model, their gradients, and log-probs by plain transformers, for these tests."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import torch

from rlcore.config import structure
from rlcore.settings import TrainConfig
from rlcore.training.build import assemble
from rlcore.training.inputs import Inputs
from rlcore.types import Sample
from rlcore_testing.small import make_tokenizer
from rlcore_transformers.preferences.preferences import build_preferences

ROWS: list[dict[str, Any]] = build_preferences.example_rows  # type: ignore[attr-defined]
LABELLED = [
    {"prompt": "ab", "completion": "cde", "label": True}, {"prompt": "q", "completion": "!", "label": False},
    {"prompt": "m", "completion": "nop", "label": True}, {"prompt": "z", "completion": "a b", "label": False},
    {"prompt": "who? ", "completion": "me!", "label": True},
]  # fmt: skip


def make(
    folder: Path, model: Any, rows: Any = ROWS, *, sections: Any = None, held_out: Any = None, **options: Any
) -> Any:
    settings = {
        "trainer": {"name": "rlcore-dpo:dpo", "batch_size": 6, **options}, "loggers": [],
        "run": {"root": str(folder), "steps": 3}, **(sections or {}),
    }  # fmt: skip
    inputs = Inputs(model=model, tokenizer=make_tokenizer(), samples=rows, eval_samples=held_out)
    return assemble(structure(TrainConfig, settings, where="test"), inputs, "test").trainer


def gradients(trainer: Any, batch: Any, size: int) -> dict[str, torch.Tensor]:
    trainer.updater.accumulate(batch, trainer.objective.loss_of(batch), size=size, group=trainer.objective.group)
    found = {n: p.grad.clone() for n, p in trainer.policy().module.named_parameters() if p.grad is not None}
    trainer.updater.optimizer.zero_grad()
    return found


def logprobs_of(model: Any, sample: Sample) -> torch.Tensor:
    """Return the log-prob of every token but the first, by the model alone and without padding."""
    tokens = torch.tensor(sample.tokens)
    return model(tokens[None]).logits[0, :-1].log_softmax(-1).gather(1, tokens[1:, None])[:, 0]


def answer(model: Any, sample: Sample) -> torch.Tensor:
    return logprobs_of(model, sample)[torch.tensor(sample.action_mask[1:])]


def perturbed(model: Any) -> Any:
    """Return a copy whose weights differ, as after a few steps."""
    other = copy.deepcopy(model)
    torch.manual_seed(3)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))
    return other
