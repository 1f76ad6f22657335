"""The policy that learns is the one that samples: its gradient is that of the expected reward at any temperature."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import PreTrainedModel

from rlcore.types import Trajectories
from rlcore_testing.small import LETTERS, VOCABULARY, make_gpt2

Make = Callable[..., Any]
PROMPT = tuple(LETTERS.index(letter) for letter in "cat")
TRAINERS = ["ppo", "rlcore-reinforce:reinforce", "rlcore-rft:rft"]


def probabilities(model: PreTrainedModel, temperature: float) -> Tensor:
    """Return softmax(logits / temperature) of the first token, from plain transformers in float64."""
    return (model(torch.tensor([PROMPT])).logits[0, -1] / temperature).softmax(-1)


def every_token(weights: Tensor, old_logprobs: Tensor) -> Trajectories:
    """Return each token of the vocabulary once as a response, with a weight as its advantage."""
    rows = [[*PROMPT, token] for token in range(VOCABULARY)]
    batch = Trajectories.stack(rows, [[False] * len(PROMPT) + [True]] * VOCABULARY)

    def at_response(column: Tensor) -> Tensor:
        return column.float()[:, None] * batch.action_mask

    zero = torch.zeros(batch.tokens.shape)
    return batch.with_columns(
        old_logprobs=at_response(old_logprobs), values=zero, returns=zero, advantages=at_response(weights)
    )


def gradient(
    make_trainer: Make, name: str, model: PreTrainedModel, temperature: float, rewards: Tensor
) -> list[Tensor]:
    """Return the gradient of the loss expected over responses of one token: each token weighted by its probability."""
    sections = {"gen": {"max_new_tokens": 1, "temperature": temperature}}
    inputs = {"prompts": ["cat"], "reward_fn": lambda outputs: [0.0] * len(outputs)}
    options = {"kl_coef": 0.0, "value_coef": 0.0} if name == "ppo" else {"dropout": False} if "rft" in name else {}
    trainer = make_trainer(name, copy.deepcopy(model).float(), sections=sections, inputs=inputs, **options)
    chances = probabilities(model, temperature).detach()
    part = every_token(chances * rewards, chances.log())
    if "reinforce" in name:
        part = part.with_columns(advantages=part["advantages"].sum(1))
    losses, _ = trainer.loss(part)
    if "rft" in name:  # its loss is a likelihood, whose weight is how often a response was chosen
        losses = losses * part["advantages"]
    (losses * part.action_mask).sum().backward()
    module = trainer.policy().module
    return [module.model.get_parameter(name).grad for name, _ in model.named_parameters()]


@pytest.mark.parametrize("temperature", [0.5, 0.9, 1.7])
@pytest.mark.parametrize("name", TRAINERS)
def test_equal_rewards_leave_the_policy_where_it_is(make_trainer: Make, name: str, temperature: float) -> None:
    model = make_gpt2().double()
    found = gradient(make_trainer, name, model, temperature, torch.ones(VOCABULARY, dtype=torch.float64))
    signs = torch.arange(VOCABULARY) % 2 * 2.0 - 1.0
    unequal = gradient(make_trainer, name, model, temperature, signs)
    assert max(float(each.abs().max()) for each in found) < 1e-5 * max(float(each.abs().max()) for each in unequal)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 1.7])
@pytest.mark.parametrize("name", TRAINERS)
def test_the_gradient_is_the_slope_of_the_expected_reward(make_trainer: Make, name: str, temperature: float) -> None:
    model = make_gpt2().double()
    random = torch.Generator().manual_seed(0)
    rewards = torch.randn(VOCABULARY, generator=random, dtype=torch.float64)
    found = gradient(make_trainer, name, model, temperature, rewards)
    for _ in range(3):
        directions = [torch.randn(each.shape, generator=random, dtype=torch.float64) for each in found]
        ends = []
        for distance in (1e-5, -1e-5):
            moved = copy.deepcopy(model)
            with torch.no_grad():
                for parameter, direction in zip(moved.parameters(), directions, strict=True):
                    parameter.add_(direction, alpha=distance)
                ends.append(float((probabilities(moved, temperature) * rewards).sum()))
        slope = sum(float((each * direction).sum()) for each, direction in zip(found, directions, strict=True))
        assert -slope == pytest.approx((ends[0] - ends[1]) / 2e-5, rel=1e-3, abs=1e-6)
