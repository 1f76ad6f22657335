"""Tests of PPO's state between rounds, and of options at their limits."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from ppo_making import Make, make_ppo, move, roll
from transformers import PreTrainedModel

from rlcore.errors import ConfigError, ModelError


def test_an_adaptive_kl_coefficient_moves_once_a_round(make_trainer: Make, tiny_gpt2: PreTrainedModel) -> None:
    options = {"kl_coef": 0.2, "kl_target": 2.0, "kl_horizon": 400, "epochs": 3, "batch_size": 8}
    trainer = make_ppo(make_trainer, tiny_gpt2, **options)
    move(trainer.policy().module)
    steps = trainer.steps()
    coef = 0.2
    for _ in range(3):
        metrics = next(steps)
        assert metrics["kl/coef"] == pytest.approx(coef)
        coef *= 1 + min(max(metrics["kl/mean"] / 2.0 - 1, -0.2), 0.2) * 32 / 400
    assert coef != 0.2


def test_a_round_is_penalised_with_the_coefficient_from_before_it(
    make_trainer: Make, tiny_gpt2: PreTrainedModel
) -> None:
    trainer = make_ppo(make_trainer, tiny_gpt2, kl_coef=0.2, kl_target=2.0, kl_horizon=100)
    move(trainer.policy().module)
    for _ in range(2):
        coef = trainer.kl.value
        batch, _ = roll(trainer)
        penalties = batch["scores"] - batch["rewards"].sum(1)
        torch.testing.assert_close(penalties, coef * (batch["kl"] * batch.action_mask).sum(1), rtol=1e-4, atol=1e-4)
        assert abs(trainer.kl.value / coef - 1) > 0.01


def test_no_reference_is_kept_where_its_weight_is_zero(make_trainer: Make, tiny_gpt2: PreTrainedModel) -> None:
    trainer = make_ppo(make_trainer, tiny_gpt2, kl_coef=0.0)
    metrics = next(trainer.steps())
    assert trainer.policy().reference is None
    assert not [name for name in metrics if name.startswith("kl/")]
    batch, _ = roll(trainer)
    with pytest.raises(ModelError, match="reference"):
        trainer.policy().reference_score(batch)


def test_adapting_a_kl_coefficient_of_zero_is_refused(make_trainer: Make, tiny_gpt2: PreTrainedModel) -> None:
    with pytest.raises(ConfigError, match="kl_coef = 0"):
        make_ppo(make_trainer, tiny_gpt2, kl_coef=0.0, kl_target=6.0)
    with pytest.raises(ConfigError, match="kl_horizon = 2: with 10 rollouts"):  # a factor of 1 - .2 * 10 / 2 = 0
        make_ppo(make_trainer, tiny_gpt2, kl_coef=0.2, kl_target=6.0, kl_horizon=2, rollouts=10)


def test_values_are_measured_by_the_variance_of_returns_that_they_explain(
    make_trainer: Make, tiny_gpt2: PreTrainedModel
) -> None:
    batch, metrics = roll(make_ppo(make_trainer, tiny_gpt2, whiten_advantages=True))
    returns, values = (batch[name][batch.action_mask].double().numpy() for name in ("returns", "values"))
    assert metrics["value/mean"] == pytest.approx(values.mean(), rel=1e-4)
    assert metrics["value/explained_variance"] == pytest.approx(1 - (returns - values).var() / returns.var(), rel=1e-4)


def test_epochs_over_the_prompts_are_converted_to_rounds(make_trainer: Make, tiny_gpt2: PreTrainedModel) -> None:
    trainer = make_ppo(make_trainer, tiny_gpt2, rollouts=3, run={"epochs": 2.0})
    assert trainer.run.total_steps == 3  # of three of the four prompts each


def test_adaptive_quantities_are_restored_with_the_state(make_trainer: Make, tiny_gpt2: PreTrainedModel) -> None:
    options = {"kl_coef": 0.2, "kl_target": 2.0, "kl_horizon": 100, "score_scaling": "running", "rollouts": 6}
    first = make_ppo(make_trainer, copy.deepcopy(tiny_gpt2), **options)
    steps = first.steps()
    for _ in range(3):
        next(steps)
    second = make_ppo(make_trainer, copy.deepcopy(tiny_gpt2), **options)
    second.load_state_dict(first.state_dict())
    assert second.kl.value == first.kl.value != 0.2
    assert second.scale == first.scale
    assert second.scale.count == 18
    assert second.num_rounds == 3
    assert second.order.take(10) == first.order.take(10)


@pytest.mark.parametrize(
    "options",
    [
        {"rollouts": 5, "batch_size": 2, "micro_batch_size": 1, "epochs": 2},
        {"rollouts": 1, "batch_size": 1},
        {"rollouts": 3, "batch_size": 100, "micro_batch_size": 64},
        {"rollouts": 5, "clip": 0.0, "clip_value": 0.0, "gamma": 0.0, "lam": 0.0},
        {
            "rollouts": 5,
            "value_coef": 0.0,
            "kl_estimator": "full",
            "bootstrap_truncated": True,
            "score_scaling": "first",
        },
        {"rollouts": 5, "model": {"value_layers": 1}},
        {"rollouts": 5, "model": {"critic": "copy"}},
        {"rollouts": 5, "model": {"unfrozen_layers": 1, "speed": {"packing": False}}},
        {"rollouts": 5, "gen": {"max_new_tokens": 1}},
        {"rollouts": 5, "gen": {"temperature": 0.0}},
    ],
    ids=str,
)
def test_ppo_trains_with_options_at_the_ends_of_their_ranges(
    make_trainer: Make, tiny_gpt2: PreTrainedModel, options: dict[str, Any]
) -> None:
    trainer = make_ppo(make_trainer, tiny_gpt2, **options)
    before = copy.deepcopy(trainer.policy().module.state_dict())
    steps = trainer.steps()
    for _ in range(2):
        metrics = next(steps)
    assert math.isfinite(metrics["loss/total"])
    assert metrics["policy/skipped"] == 0
    after = trainer.policy().module.state_dict()
    assert any(not torch.equal(after[name], weight) for name, weight in before.items())
    assert all(weight.isfinite().all() for weight in after.values())
