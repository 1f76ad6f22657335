"""Tests that the policy that learns is the one that sampled, and that a difference is reported."""

from __future__ import annotations

import pytest
from ppo_making import Make, make_ppo, roll
from torch import nn
from transformers import PreTrainedModel


@pytest.mark.parametrize(
    ("shift", "precision", "reported"),
    [(0.02, "no", True), (0.005, "no", False), (0.2, "bf16", True), (0.02, "bf16", False)],
)
def test_sampler_and_trainer_may_differ_by_as_much_as_their_precision_explains(
    make_trainer: Make,
    tiny_gpt2: PreTrainedModel,
    capsys: pytest.CaptureFixture[str],
    shift: float,
    precision: str,
    reported: bool,
) -> None:
    trainer = make_ppo(make_trainer, tiny_gpt2, run={"mixed_precision": precision})
    batch, _ = roll(trainer)
    trainer.update(batch.with_columns(old_logprobs=batch["old_logprobs"] - shift))
    assert ("disagree" in "".join(capsys.readouterr())) == reported


def test_dropout_is_off_in_sampling_and_in_training(make_trainer: Make, tiny_gpt2: PreTrainedModel) -> None:
    for module in tiny_gpt2.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.5
    trainer = make_ppo(make_trainer, tiny_gpt2, kl_coef=0.2)
    metrics = next(trainer.steps())
    assert metrics["policy/approx_kl"] == pytest.approx(0, abs=1e-6)
    assert metrics["kl/mean"] == pytest.approx(0, abs=1e-4)


def test_a_policy_that_has_learned_in_the_first_epoch_is_not_reported(
    make_trainer: Make, tiny_gpt2: PreTrainedModel, capsys: pytest.CaptureFixture[str]
) -> None:
    trainer = make_ppo(make_trainer, tiny_gpt2, epochs=2, batch_size=16, optimizer={"lr": 0.01})
    metrics = next(trainer.steps())
    assert abs(metrics["policy/ratio_mean"] - 1) > 0.01
    assert "disagree" not in "".join(capsys.readouterr())
