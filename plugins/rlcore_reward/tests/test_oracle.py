"""The losses of reward models and process reward models in plain torch, row by row, without padding."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from held_laws import hold
from torch import Tensor

VARIANTS: dict[str, dict[str, Any]] = {
    "reward": {"batch_size": 4},
    "reward with ties": {"batch_size": 4, "ties": "learn", "center_coef": 0.1},
    "process_reward": {"batch_size": 4},
}


def reward(run: Any) -> Iterator[tuple[Tensor, dict[str, Tensor]]]:
    options = run.options
    theta = options["tie_ratio"] if options["ties"] == "learn" else 1.0
    for pairs in run.steps:
        losses, margins = [], []
        for pair in pairs:
            better, worse = (
                run.model(torch.tensor([each.tokens])).logits[0, 0] for each in (pair.chosen, pair.rejected)
            )
            gap = better - worse
            if pair.is_tie:
                wins, defeats = (1 / (1 + theta * (-x).exp()) for x in (gap, -gap))
                probability = 1 - wins - defeats
            else:
                probability = 1 / (1 + theta * ((pair.margin or 0.0) - gap).exp())
                margins.append(gap)
            losses.append(options["center_coef"] * (better + worse) ** 2 - probability.log())
        loss = torch.stack(losses).mean()
        yield loss, {"loss/total": loss, **({"reward/margin": torch.stack(margins).mean()} if margins else {})}


def process_reward(run: Any) -> Iterator[tuple[Tensor, dict[str, Any]]]:
    for rows in run.steps:
        losses, right = [], []
        for row in rows:
            logits = run.model(torch.tensor([row.sample.tokens])).logits[0]
            for t, label in enumerate(row.labels):
                if label >= 0:
                    sign = 1 if label else -1
                    gap = sign * (logits[t, 1] - logits[t, 0])
                    losses.append((1 + (-gap).exp()).log())
                    right.append(float(gap > 0))
        loss = torch.stack(losses).mean()
        yield loss, {"loss/total": loss, "step/accuracy": math.fsum(right) / len(right)}


def check(law: str, variant: str) -> None:
    name = variant.partition(" ")[0]
    oracle = reward if name == "reward" else process_reward
    hold("rlcore-reward", law, options={name: VARIANTS[variant]}, oracles={name: oracle})


@pytest.mark.slow
@pytest.mark.parametrize("variant", VARIANTS)
def test_training_equals_an_independent_implementation(variant: str) -> None:
    check("it_equals_its_oracle", variant)


@pytest.mark.slow
@pytest.mark.parametrize("variant", ["reward with ties", "process_reward"])
def test_two_processes_equal_an_independent_implementation(variant: str) -> None:
    check("two_processes_equal_the_oracle", variant)
