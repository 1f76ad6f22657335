"""Rounds whose sampler computes other log-probs than the policy that learns."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from grpo_making import assert_same, gradients, make

from rlcore.errors import ConfigError
from rlcore.types import Trajectories
from rlcore_testing.small import make_llama


def change_sampler(trainer: Any, change: Callable[[Trajectories], Trajectories], *, exact: bool = False) -> None:
    sample = trainer.run.sampling.sampler

    def changed(*given: Any, **options: Any) -> Trajectories:
        return change(sample(*given, **options))

    changed.exact_logprobs = exact  # type: ignore[attr-defined]
    trainer.run.sampling.sampler = changed


def keep_weights(trainer: Any) -> None:
    """Let the sampler keep the weights that the policy has now."""
    sample, first = trainer.run.sampling.sampler, copy.deepcopy(trainer.policy())
    first.use_forward(first.module, autocast=nullcontext)
    trainer.run.sampling.sampler = lambda _, *given, **options: sample(first, *given, **options)


def shifts(batch: Trajectories) -> torch.Tensor:
    """Return log 3 in even columns and log .5 in odd ones: float[T]."""
    even = torch.arange(batch.tokens.shape[1]) % 2 == 0
    return torch.where(even, math.log(3.0), math.log(0.5))


def gradient_of(trainer: Any, batch: Trajectories, weights: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return the gradient of -sum_t w A log pi / N."""
    policy, mask = trainer.policy(), batch.action_mask
    loss = -(weights * batch["advantages"][:, None] * policy.score(batch).logprobs)[mask].sum() / mask.sum()
    loss.backward()
    return {name: p.grad.clone() for name, p in policy.module.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("exact", [False, True])
def test_tokens_are_weighed_by_the_policy_that_learns_over_the_one_that_sampled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, exact: bool
) -> None:
    """Ratios of 3 and .5, the first one cut off at 2; the sampler's log-probs are never taken for the trainer's."""
    trainer = make(tmp_path, is_correction="token_truncate")
    change_sampler(trainer, lambda batch: batch.with_columns(logprobs=batch["logprobs"] - shifts(batch)), exact=exact)
    trainer.rollout()
    batch = trainer.store.take()
    expected = torch.where(torch.arange(batch.tokens.shape[1]) % 2 == 0, 2.0, 0.5).expand(batch.tokens.shape)
    assert torch.allclose(batch["is_weights"][batch.action_mask], expected[batch.action_mask], atol=1e-4)
    found = gradients(trainer, batch, monkeypatch)
    assert_same(found, gradient_of(trainer, batch, expected))


def test_the_divergence_of_sampler_and_policy_is_a_metric(tmp_path: Path) -> None:
    """k3 with Δ = log π_sampler - log π: 3 - 1 - log 3 where π is three times as large, else .5 - 1 + log 2."""
    trainer = make(tmp_path, rollouts=16)
    change_sampler(trainer, lambda batch: batch.with_columns(logprobs=batch["logprobs"] - shifts(batch)))
    trainer.rollout()
    batch = trainer.store.take()
    metrics = trainer.update(batch)
    counts = batch["advantages"].view(-1, trainer.config.num_generations) != 0
    rows = counts.any(1).repeat_interleave(trainer.config.num_generations)  # other groups are in no forward pass
    even = torch.arange(batch.tokens.shape[1]) % 2 == 0
    each = torch.where(even, 2 - math.log(3.0), math.log(2.0) - 0.5).expand(batch.tokens.shape)
    assert metrics["is/kl"] == pytest.approx(float(each[rows][batch.action_mask[rows]].mean()), rel=1e-4)


def test_a_sampler_with_old_weights_is_corrected(tmp_path: Path) -> None:
    trainer = make(tmp_path, is_correction="token_truncate", is_high=3.0, iterations=2)
    keep_weights(trainer)
    with torch.no_grad():
        for parameter in trainer.policy().module.parameters():
            parameter.mul_(1.3)
    metrics = next(trainer.steps())
    assert metrics["is/logprob_gap"] > 0.1
    assert abs(metrics["is/weight_mean"] - 1) > 0.01


def test_a_sampler_with_old_weights_shows_in_the_kl_metric(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Samples of the reference are improbable under a policy far from it, whatever the sampler says of them."""
    trainer = make(tmp_path, kl_coef=0.1, rollouts=64)
    keep_weights(trainer)
    with torch.no_grad():
        for parameter in trainer.policy().module.parameters():
            parameter.mul_(1.5)
    metrics = trainer.rollout()
    assert metrics["kl/mean"] < -0.5
    assert capsys.readouterr().err.count("far below 0") == 1


@pytest.mark.parametrize("iterations", [1, 2])
def test_bad_responses_that_became_improbable_are_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, iterations: int
) -> None:
    """The sampler's log-probs of every other response are .5 nats a token higher than the policy's."""
    trainer = make(tmp_path, off_policy_mask=0.4, iterations=iterations)
    odd = torch.arange(12) % 2 == 1
    change_sampler(trainer, lambda batch: batch.with_columns(logprobs=batch["logprobs"] + 0.5 * odd[:, None]))
    trainer.rollout()
    batch = trainer.store.take()
    gone = odd & (batch["advantages"] < 0)
    assert 0 < int(gone.sum()) < int((batch["advantages"] < 0).sum())
    found = gradients(trainer, batch, monkeypatch)
    once = gradient_of(trainer, batch, (~gone).float()[:, None])
    assert_same(found, {name: iterations * gradient for name, gradient in once.items()})


@pytest.mark.parametrize("options", [{"is_correction": "token_mask"}, {"off_policy_mask": 0.1}])
def test_a_sampler_without_log_probs_cannot_be_compared(tmp_path: Path, options: dict[str, Any]) -> None:
    trainer = make(tmp_path, make_llama(), **options)
    change_sampler(trainer, lambda batch: batch.with_only())
    with pytest.raises(ConfigError, match=f"trainer.{next(iter(options))} = .*: the sampler returns no log-probs"):
        trainer.rollout()


def test_log_probs_of_the_built_in_sampler_need_no_forward_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []
    for name, options in (("known", {}), ("corrected", {"is_correction": "token_mask"})):
        trainer = make(tmp_path / name, iterations=2, **options)
        score = trainer.policy().score
        monkeypatch.setattr(trainer.policy(), "score", lambda *a, s=score, **k: (calls.append(1), s(*a, **k))[1])
        trainer.rollout()
        assert bool(calls) == bool(options)
