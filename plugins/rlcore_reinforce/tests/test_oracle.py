"""The loss of REINFORCE in plain torch, row by row, without padding."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from held_laws import hold
from torch import Tensor

VARIANTS: dict[str, dict[str, Any]] = {"a round of six": {"rollouts": 6}}


def reinforce(run: Any) -> Iterator[tuple[Tensor, dict[str, Tensor]]]:
    for responses in run.rounds:
        losses = []
        for i, response in enumerate(responses):
            others = [other.score for j, other in enumerate(responses) if j != i]
            advantage = response.score - sum(others) / len(others)
            logits = run.model(torch.tensor([response.tokens])).logits[0] / run.gen["temperature"]
            for t, own in enumerate(response.action_mask):
                if own:
                    losses.append(-advantage * logits[t - 1].log_softmax(-1)[response.tokens[t]])
        loss = torch.stack(losses).mean()
        yield loss, {"loss/policy": loss}


def check(law: str, variant: str) -> None:
    hold("rlcore-reinforce", law, options={"reinforce": VARIANTS[variant]}, oracles={"reinforce": reinforce})


@pytest.mark.slow
@pytest.mark.parametrize("variant", VARIANTS)
def test_training_equals_an_independent_implementation(variant: str) -> None:
    check("it_equals_its_oracle", variant)


@pytest.mark.slow
@pytest.mark.parametrize("variant", ["a round of six"])
def test_two_processes_equal_an_independent_implementation(variant: str) -> None:
    check("two_processes_equal_the_oracle", variant)
