from __future__ import annotations

import copy
import math
from pathlib import Path
from typing import Any

import attrs
import pytest
import torch
from grpo_making import SIZE, assert_same, gradients, halves, make

from rlcore_testing.small import make_llama


def logprobs_of(model: Any, tokens: torch.Tensor, temperature: float) -> torch.Tensor:
    return (model(tokens[None]).logits[0, :-1] / temperature).log_softmax(-1).gather(1, tokens[1:, None])[:, 0]


@pytest.mark.parametrize("norm", ["token", "sequence", "constant"])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_the_gradient_is_that_of_the_equation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, norm: str, temperature: float
) -> None:
    """On policy the ratio is 1, and the gradient that of -A log pi, at the temperature that is sampled at.

    TRL #3029 and #4159 and NeMo-RL #935 leave the temperature out, prime-rl #697 divides log-probs by it.
    """
    model = make_llama()
    plain = copy.deepcopy(model)
    trainer = make(tmp_path, model, norm=norm, gen={"temperature": temperature})
    trainer.rollout()
    batch = trainer.store.take()
    tokenizer = trainer.run.learner.tokenizer
    outputs = ["".join(tokenizer.batch_decode(row, skip_special_tokens=True)) for row in batch.action_tokens]
    scores = halves(outputs)
    lengths = [len(row) for row in batch.action_tokens]
    total = torch.zeros(())
    for i, score in enumerate(scores):
        group = scores[i // SIZE * SIZE : i // SIZE * SIZE + SIZE]
        mean = sum(group) / SIZE
        deviation = math.sqrt(sum((each - mean) ** 2 for each in group) / (SIZE - 1))
        advantage = 0.0 if min(group) == max(group) else (score - mean) / (deviation + 1e-4)
        tokens, chosen = batch.tokens[i][batch.mask[i]], batch.action_mask[i][batch.mask[i]]
        weight = {"token": 1 / sum(lengths), "sequence": 1 / lengths[i] / len(scores), "constant": 1 / len(scores) / 6}
        total = total - weight[norm] * advantage * logprobs_of(plain, tokens, temperature)[chosen[1:]].sum()
    total.backward()
    found = gradients(trainer, batch, monkeypatch)
    assert len(set(scores)) > 2
    assert_same(found, {f"model.{name}": p.grad for name, p in plain.named_parameters()})


@pytest.mark.parametrize("norm", ["token", "sequence", "constant"])
@pytest.mark.parametrize("options", [{"micro_batch_size": 1}, {"micro_batch_size": 5}, {"micro_batch_tokens": 20}])
def test_micro_batches_do_not_change_the_gradient(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, norm: str, options: dict[str, int]
) -> None:
    """The number that a loss is divided by is that of the whole optimizer step, and not of its parts.

    TRL #3021, ms-swift #10117: accumulation changes the result.
    """
    model = make_llama()
    whole = make(tmp_path, copy.deepcopy(model), norm=norm, kl_coef=0.1)
    whole.rollout()
    batch = whole.store.take()
    parts = make(tmp_path / "parts", copy.deepcopy(model), norm=norm, kl_coef=0.1, **options)
    assert_same(gradients(parts, batch, monkeypatch), gradients(whole, batch, monkeypatch))


def test_halves_of_a_batch_sum_to_the_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer = make(tmp_path, rollouts=16)
    trainer.rollout()
    batch = trainer.store.take()
    halves_of = [batch.rows(torch.arange(0, 8)), batch.rows(torch.arange(8, 16))]
    whole, *parts = (gradients(trainer, each, monkeypatch) for each in (batch, *halves_of))
    counts = [int(half.action_mask.sum()) for half in halves_of]
    for name, gradient in whole.items():
        mixed = sum(count * part[name] for count, part in zip(counts, parts, strict=True)) / sum(counts)
        assert torch.allclose(gradient, mixed, atol=2e-6, rtol=1e-4)


def test_each_optimizer_step_is_divided_by_its_own_tokens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """TRL #5619 and #6024 divide by those of another window: of all that was sampled, or of one accumulation."""
    model, found = make_llama(), list[dict[str, torch.Tensor]]()
    trainer = make(tmp_path, copy.deepcopy(model), minibatches=3)
    trainer.rollout()
    batch = trainer.store.take()

    def step(*_: Any) -> None:
        parameters = trainer.policy().module.named_parameters()
        found.append({name: p.grad.clone() for name, p in parameters if p.grad is not None})
        trainer.updater.optimizer.zero_grad()

    monkeypatch.setattr(trainer.updater, "step", step)
    trainer.update(batch)
    seed = trainer.run.config.run.seed * 1_000_003 * 101
    parts = [part.own for part in trainer.run.round(batch).minibatches(SIZE, seed=seed, group=SIZE)]
    alone = make(tmp_path / "alone", copy.deepcopy(model))
    wanted = [gradients(alone, part, monkeypatch) for part in parts if bool((part["advantages"] != 0).any())]
    assert len({int(part.action_mask.sum()) for part in parts}) > 1
    assert len(found) == len(wanted) > 1
    for seen, expected in zip(found, wanted, strict=True):
        assert_same(seen, expected)


def test_groups_without_spread_count_in_the_mean_only_if_they_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TRL #7068 counts the tokens before it leaves groups out."""

    def first_group_alone(outputs: list[str]) -> list[float]:
        return [float(len(output)) if i < SIZE else 1.0 for i, output in enumerate(outputs)]

    model, counts, found = make_llama(), [], []
    for choice in ("keep", "drop"):
        trainer = make(tmp_path / choice, copy.deepcopy(model), reward_fn=first_group_alone, zero_spread=choice)
        metrics = trainer.rollout()
        assert metrics["group/zero_spread_fraction"] == pytest.approx(2 / 3)
        assert metrics["group/dropped"] == {"keep": 0, "drop": 2}[choice]
        batch = trainer.store.take()
        counts.append(int(batch.action_mask.sum()))
        found.append(gradients(trainer, batch, monkeypatch))
    assert counts[0] > counts[1]
    for name, gradient in found[1].items():
        assert torch.allclose(found[0][name], gradient * counts[1] / counts[0], atol=1e-6)


def test_truncated_responses_leave_the_loss_and_its_mean_but_not_the_baseline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TRL #6369 leaves them in the number of tokens."""
    model = make_llama()
    plain, masked = (
        make(tmp_path / str(choice), copy.deepcopy(model), mask_truncated=choice) for choice in (False, True)
    )
    for trainer in (plain, masked):
        trainer.rollout()
    batch, other = plain.store.take(), masked.store.take()
    assert 0 < int(batch.ended.sum()) < len(batch)
    assert torch.equal(batch["advantages"], other["advantages"])
    assert torch.equal(other["counts"], batch.ended)
    by_hand = attrs.evolve(batch, action_mask=batch.action_mask & batch.ended[:, None])
    assert_same(gradients(masked, other, monkeypatch), gradients(plain, by_hand, monkeypatch))


@pytest.mark.parametrize(("estimator", "ratio"), [("k2", False), ("k3", False), ("k3", True)])
def test_the_kl_in_the_loss_has_the_gradient_of_its_estimator(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, estimator: str, ratio: bool
) -> None:
    trainer = make(tmp_path, kl_coef=0.5, kl_estimator=estimator, kl_ratio=ratio)
    with torch.no_grad():
        for parameter in trainer.policy().module.parameters():
            parameter.mul_(1.2)
    trainer.rollout()
    batch = trainer.store.take()
    batch = batch.with_columns(advantages=torch.zeros_like(batch["advantages"]))
    found = gradients(trainer, batch, monkeypatch)
    policy, count = trainer.policy(), batch.action_mask.sum()
    logprobs, reference = policy.score(batch).logprobs, policy.reference_score(batch).logprobs
    gap = (logprobs - reference).detach()
    # d k2 = gap dlogp;  d k3 = (1 - exp(-gap)) dlogp;  and with the ratio, at 1: + k3 dlogp.
    slope = gap if estimator == "k2" else 1 - (-gap).exp() + (((-gap).expm1() + gap) if ratio else 0)
    (0.5 * (slope * logprobs * batch.action_mask).sum() / count).backward()
    expected = {n: p.grad.clone() for n, p in policy.module.named_parameters() if p.grad is not None}
    assert_same(found, expected)


def test_a_sampler_that_agrees_is_not_corrected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = make_llama()
    plain, corrected = (
        make(tmp_path / kind, copy.deepcopy(model), iterations=2, is_correction=kind) for kind in ("off", "token_mask")
    )
    for trainer in (plain, corrected):
        trainer.rollout()
    first, second = plain.store.take(), corrected.store.take()
    assert torch.allclose(second["is_weights"][second.action_mask], torch.ones(()), atol=1e-4)
    assert_same(gradients(corrected, second, monkeypatch), gradients(plain, first, monkeypatch))


def test_only_tokens_of_high_entropy_get_a_gradient_but_all_count_in_the_divisor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = make(tmp_path, top_entropy=0.25)
    trainer.rollout()
    batch = trainer.store.take()
    found = gradients(trainer, batch, monkeypatch)
    policy, mask = trainer.policy(), batch.action_mask
    outputs = policy.score(batch, entropy=True)
    sure = outputs.entropy.detach()[mask].sort(descending=True).values
    learns = mask & (outputs.entropy >= sure[math.floor(0.25 * (len(sure) - 1))])
    assert 0 < int(learns.sum()) < int(mask.sum()) / 3
    (-(outputs.logprobs * batch["advantages"][:, None])[learns].sum() / mask.sum()).backward()
    assert_same(found, {n: p.grad.clone() for n, p in policy.module.named_parameters() if p.grad is not None})
