"""Tests that the policy that learns is the one that sampled, and that a difference is reported."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from ppo_making import Make, make_ppo, roll
from torch import nn
from transformers import PreTrainedModel

from rlcore.errors import ConfigError
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


@pytest.mark.parametrize(
    ("share", "precision", "reported"), [(0.1, "bf16", False), (0.4, "bf16", True), (0.1, "no", True)]
)
def test_single_tokens_may_differ_more_in_low_precision(
    make_trainer: Make,
    tiny_gpt2: PreTrainedModel,
    capsys: pytest.CaptureFixture[str],
    share: float,
    precision: str,
    reported: bool,
) -> None:
    """The ratio of a share of the tokens is 1.22: in low precision the mean of |ratio - 1|, .022 or .089, counts."""
    trainer = make_ppo(make_trainer, tiny_gpt2, run={"mixed_precision": precision}, micro_batch_size=5)
    batch, _ = roll(trainer)
    chosen = batch.action_mask
    is_moved = chosen & (chosen.flatten().cumsum(0).view_as(chosen) % 10 < 10 * share)
    trainer.update(batch.with_columns(old_logprobs=batch["old_logprobs"] - 0.2 * is_moved))
    found = "".join(capsys.readouterr())
    assert ("disagree" in found) == reported
    assert ("low precision" in found) == (reported and precision == "bf16")


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


def of_another_program(trainer: Any) -> None:
    """Let the sampler state log-probs that are smaller by log 3 in even columns, and larger by log 2 in odd ones."""

    def changed(policy: Policy, prompts: list[Prompt], sampling: Any, **options: Any) -> Trajectories:
        batch = sample(policy, prompts, sampling, **options)
        is_even = torch.arange(batch.tokens.shape[1]) % 2 == 0
        return batch.with_columns(logprobs=batch["logprobs"] - torch.where(is_even, math.log(3.0), -math.log(2.0)))

    trainer.run.sampling.sampler = changed


@pytest.mark.parametrize("high", [2.0, 10.0])
def test_tokens_are_weighted_by_the_policy_over_the_sampler_up_to_a_bound(
    make_trainer: Make, tiny_gpt2: PreTrainedModel, high: float
) -> None:
    """The loss of a token is -A w while the policy is the one that sampled: w is min(3, bound) or 1/2."""
    trainer = make_ppo(make_trainer, tiny_gpt2, is_correction="token_truncate", is_high=high)
    of_another_program(trainer)
    batch, metrics = roll(trainer)
    weights = torch.where(torch.arange(batch.tokens.shape[1]) % 2 == 0, min(3.0, high), 0.5).expand(batch.mask.shape)
    chosen = batch.action_mask
    _, losses = trainer.loss(batch.with_only("old_logprobs", "values", "advantages", "returns", "is_weights"))
    expected = -batch["advantages"] * weights
    assert torch.allclose(losses["loss/policy"][chosen], expected[chosen], atol=1e-4)
    assert metrics["is/weight_mean"] == pytest.approx(float(weights[chosen].mean()), abs=1e-5)
    kl = torch.where(weights == 0.5, math.log(2.0) - 0.5, 2 - math.log(3.0))[chosen].mean()
    assert metrics["is/kl"] == pytest.approx(float(kl), abs=1e-4)
    assert metrics["is/logprob_gap"] == pytest.approx(
        float(torch.where(weights == 0.5, math.log(2.0), math.log(3.0))[chosen].mean()), abs=1e-5
    )


@pytest.mark.parametrize("kind", ["token_mask", "sequence_truncate", "sequence_mask", "geometric_mask"])
def test_responses_are_weighted_and_left_out_as_the_kind_of_correction_says(
    make_trainer: Make, tiny_gpt2: PreTrainedModel, kind: str
) -> None:
    """The ratio of a token is 3 in an even column, 1/2 in an odd one; weights lie between .6 and 2."""
    trainer = make_ppo(make_trainer, tiny_gpt2, is_correction=kind, is_low=0.6, is_high=2.0)
    of_another_program(trainer)
    batch, metrics = roll(trainer)
    found, masked = [], 0
    for weights, chosen in zip(batch["is_weights"], batch.action_mask, strict=True):
        ratios = [3.0 if column % 2 == 0 else 0.5 for column in chosen.nonzero().flatten().tolist()]
        product = math.prod(ratios)
        if kind == "token_mask":
            expected = [ratio if 0.6 <= ratio <= 2 else 0.0 for ratio in ratios]
        elif kind == "sequence_truncate":
            expected = [min(max(product, 0.6), 2.0)] * len(ratios)
        elif kind == "sequence_mask":
            expected = [product if 0.6 <= product <= 2 else 0.0] * len(ratios)
        else:
            expected = [float(0.6 <= product ** (1 / len(ratios)) <= 2)] * len(ratios)
        assert weights[chosen].tolist() == pytest.approx(expected, rel=1e-4)
        found += expected
        masked += expected.count(0.0)
    assert metrics["is/weight_mean"] == pytest.approx(sum(found) / len(found), rel=1e-4)
    assert metrics["is/masked_fraction"] == pytest.approx(masked / len(found), abs=1e-6)


def test_without_a_correction_the_log_probs_of_another_program_weigh_nothing(
    make_trainer: Make, tiny_gpt2: PreTrainedModel
) -> None:
    trainer = make_ppo(make_trainer, tiny_gpt2)
    of_another_program(trainer)
    batch, metrics = roll(trainer)
    assert "is_weights" not in batch
    assert "is/weight_mean" not in metrics
    _, losses = trainer.loss(batch.with_only("old_logprobs", "values", "advantages", "returns"))
    assert torch.allclose(losses["loss/policy"][batch.action_mask], -batch["advantages"][batch.action_mask], atol=1e-4)


def test_a_learning_step_uses_the_weights(make_trainer: Make, tiny_gpt2: PreTrainedModel) -> None:
    found = []
    for kind in ("off", "token_truncate"):
        trainer = make_ppo(make_trainer, copy.deepcopy(tiny_gpt2), is_correction=kind, optimizer={"lr": 1e-2})
        of_another_program(trainer)
        next(trainer.steps())
        found.append(torch.cat([each.detach().flatten() for each in trainer.policy().module.parameters()]))
    assert not torch.allclose(found[0], found[1])


def test_a_correction_needs_a_samplers_log_probs(make_trainer: Make, tiny_gpt2: PreTrainedModel) -> None:
    trainer = make_ppo(make_trainer, tiny_gpt2, is_correction="token_truncate")
    trainer.run.sampling.sampler = lambda *given, **options: sample(*given, **options).with_only()
    with pytest.raises(ConfigError, match=r"trainer.is_correction = 'token_truncate': the sampler returns no"):
        trainer.rollout()


@pytest.mark.parametrize("gen", [{"top_k": 3}, {"top_p": 0.9}], ids=str)
def test_a_correction_refuses_options_that_change_the_distribution(
    gen: dict[str, Any], make_trainer: Make, tiny_gpt2: PreTrainedModel
) -> None:
    with pytest.raises(ConfigError, match=r"trainer.is_correction = 'token_truncate': options such as gen.top_k"):
        make_ppo(make_trainer, tiny_gpt2, gen=gen, is_correction="token_truncate")
