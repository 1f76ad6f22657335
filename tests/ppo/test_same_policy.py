"""Tests that the policy that learns is the one that sampled, and that a difference is reported."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from ppo_making import Make, make_ppo, roll
from torch import nn
from transformers import PreTrainedModel

from rlcore.protocols import Policy
from rlcore.sampling import sample
from rlcore.types import Prompt, Trajectories


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


@pytest.mark.parametrize("says_logprobs", [False, True])
def test_a_sampler_with_old_weights_is_reported(
    make_trainer: Make, tiny_gpt2: PreTrainedModel, capsys: pytest.CaptureFixture[str], says_logprobs: bool
) -> None:
    trainer = make_ppo(make_trainer, tiny_gpt2, kl_coef=0.05, optimizer={"lr": 1e-2})
    old = copy.deepcopy(trainer.policy())

    def sample_old(policy: Policy, prompts: list[Prompt], sampling: Any, **options: Any) -> Trajectories:
        batch = sample(old, prompts, sampling, **options)
        return batch.with_only("logprobs") if says_logprobs else batch.with_only()

    trainer.run.sampling.sampler = sample_old
    metrics = [metrics for metrics, _ in zip(trainer.steps(), range(12), strict=False)]
    reported = capsys.readouterr().err
    assert min(each["kl/mean"] for each in metrics) < -1
    assert reported.count("far below 0") == 1
    assert reported.count("log-probs are not those") == says_logprobs
    assert ("is/logprob_gap" in metrics[0]) == says_logprobs


def test_a_sampler_with_the_weights_of_the_policy_is_not_reported(
    make_trainer: Make, tiny_gpt2: PreTrainedModel, capsys: pytest.CaptureFixture[str]
) -> None:
    trainer = make_ppo(make_trainer, tiny_gpt2, kl_coef=0.05, optimizer={"lr": 1e-2}, gen={"top_k": 20})
    for metrics, _ in zip(trainer.steps(), range(12), strict=False):
        assert metrics["is/logprob_gap"] < 1e-5
    assert "policy.version" not in capsys.readouterr().err
