from __future__ import annotations

import copy
import math
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import attrs
import pytest
import torch

from rlcore.config import structure
from rlcore.errors import ConfigError, RewardError
from rlcore.settings import TrainConfig
from rlcore.testing.small import EOS, PROMPTS, make_gpt2, make_llama, make_tokenizer
from rlcore.training.build import assemble
from rlcore.training.inputs import Inputs
from rlcore_grpo.config import PRESETS, GRPOConfig

ENDS = [EOS, 3, 7, 11, 19]
SIZE = 4


def halves(outputs: list[str]) -> list[float]:
    return [len(output) * 0.5 - output.count("a") for output in outputs]


def make(
    folder: Path, model: Any = None, *, gen: Any = None, prompts: Any = PROMPTS, reward_fn: Any = halves, **options: Any
) -> Any:
    settings = {
        "trainer": {"name": "grpo", "rollouts": 12, "num_generations": SIZE, "optimizer": {"lr": 1e-2}, **options},
        "gen": {"max_new_tokens": 6, "eos_token_ids": ENDS, **(gen or {})},
        "run": {"root": str(folder), "steps": 3},
        "loggers": [],
    }
    given = Inputs(model=model or make_llama(), tokenizer=make_tokenizer(), prompts=list(prompts), reward_fn=reward_fn)
    return assemble(structure(TrainConfig, settings, where="test"), given, "test").trainer


def gradients(trainer: Any, batch: Any, monkeypatch: pytest.MonkeyPatch) -> dict[str, torch.Tensor]:
    monkeypatch.setattr(trainer.updater, "step", lambda *_: None)
    trainer.update(batch)
    found = {n: p.grad.clone() for n, p in trainer.policy().module.named_parameters() if p.grad is not None}
    trainer.updater.optimizer.zero_grad()
    return found


def assert_same(seen: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    assert seen
    assert set(seen) == set(expected)
    for name, gradient in expected.items():
        assert torch.allclose(seen[name], gradient, atol=2e-6, rtol=1e-4), name


def logprobs_of(model: Any, tokens: torch.Tensor, temperature: float) -> torch.Tensor:
    return (model(tokens[None]).logits[0, :-1] / temperature).log_softmax(-1).gather(1, tokens[1:, None])[:, 0]


@pytest.mark.parametrize("norm", ["token", "sequence", "constant"])
@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_the_gradient_is_that_of_the_equation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, norm: str, temperature: float
) -> None:
    """On policy the ratio is 1, and the gradient that of -A log pi, at the temperature that is sampled at."""
    model = make_llama()
    plain = copy.deepcopy(model)
    trainer = make(tmp_path, model, norm=norm, gen={"temperature": temperature})
    trainer.rollout()
    batch = trainer.store.take()
    outputs = [
        "".join(trainer.run.tokenizer.batch_decode(row, skip_special_tokens=True)) for row in batch.action_tokens
    ]
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
    """The number that a loss is divided by is that of the whole optimizer step, and not of its parts."""
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


def constant(value: Any) -> Callable[..., list[Any]]:
    return lambda outputs: [value] * len(outputs)


def test_equal_rewards_teach_nothing_and_are_told_of_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trainer = make(tmp_path, reward_fn=constant(0.95))
    before = copy.deepcopy(trainer.policy().module.state_dict())
    steps = trainer.steps()
    metrics = [next(steps) for _ in range(2)]
    assert [each["group/zero_spread_fraction"] for each in metrics] == [1.0, 1.0]
    assert [each["policy/skipped"] for each in metrics] == [1.0, 1.0]
    assert all(math.isfinite(value) for each in metrics for value in each.values())
    assert all(torch.equal(value, before[name]) for name, value in trainer.policy().module.state_dict().items())
    assert capsys.readouterr().err.count("no group of a round has two different scores") == 1


def test_groups_without_spread_count_in_the_mean_only_if_they_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_refilling_samples_other_prompts_until_the_round_is_full(tmp_path: Path) -> None:
    calls: list[int] = []

    def first_call_is_useless(outputs: list[str]) -> list[float]:
        calls.append(len(outputs))
        return [0.5 if len(calls) == 1 and i >= SIZE else i / 7 for i in range(len(outputs))]

    trainer = make(tmp_path, reward_fn=first_call_is_useless, zero_spread="refill")
    metrics = trainer.rollout()
    batch = trainer.store.take()
    assert calls == [12, 8]
    assert (metrics["group/refill_rounds"], metrics["group/dropped"]) == (1, 2)
    assert len(batch) == 12
    assert bool((batch["advantages"] != 0).view(-1, SIZE).any(1).all())
    assert trainer.rounds.order.position == 5  # three prompts, then two others


@pytest.mark.parametrize("reward", [0.0, 1.0])
def test_refilling_ends_where_the_data_are_too_easy_or_too_hard(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], reward: float
) -> None:
    trainer = make(tmp_path, reward_fn=constant(reward), zero_spread="refill", refill_batches=2)
    metrics = next(trainer.steps())
    assert (metrics["group/refill_rounds"], metrics["group/dropped"], metrics["policy/skipped"]) == (2, 9, 0)
    assert "prompts are too easy or too hard" in capsys.readouterr().err


def test_truncated_responses_leave_the_loss_and_its_mean_but_not_the_baseline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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


def test_unscored_responses_shift_no_baseline_and_have_no_loss(tmp_path: Path) -> None:
    def some(outputs: list[str]) -> list[float | None]:
        return [None if i % SIZE == 1 else float(i * i) for i in range(len(outputs))]

    trainer = make(tmp_path, reward_fn=some, scale="none")
    metrics = trainer.rollout()
    batch = trainer.store.take()
    assert metrics["reward/unscored"] == 3
    assert batch["counts"].tolist() == [True, False, True, True] * 3
    # Group 0: 0, 4 and 9, mean 13 / 3. Group 1: 16, 36 and 49, mean 101 / 3.
    assert batch["advantages"][:8].tolist() == pytest.approx(
        [-13 / 3, 0, -1 / 3, 14 / 3, -53 / 3, 0, 7 / 3, 46 / 3], abs=1e-5
    )


def test_rewards_that_apply_nowhere_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(RewardError, match="gave None for 12 of 12 responses"):
        make(tmp_path, reward_fn=constant(None)).rollout()


def test_rounds_in_which_nothing_counts_make_no_step(tmp_path: Path) -> None:
    trainer = make(tmp_path, mask_truncated=True, gen={"min_new_tokens": 6})
    metrics = next(trainer.steps())
    assert (metrics["response/truncated_fraction"], metrics["policy/skipped"]) == (1, 1)
    assert trainer.updater.num_updates == 0


def test_a_prompt_that_occurs_twice_in_a_round_has_two_groups(tmp_path: Path) -> None:
    def by_place(outputs: list[str]) -> list[float]:
        return [float(i) for i in range(len(outputs))]

    trainer = make(tmp_path, prompts=["ab"], rollouts=8, reward_fn=by_place, scale="none")
    trainer.rollout()
    assert trainer.store.take()["advantages"].tolist() == [-1.5, -0.5, 0.5, 1.5] * 2


def test_each_round_takes_the_next_prompts(tmp_path: Path) -> None:
    trainer = make(tmp_path, prompts=["a", "b", "c", "d", "e", "f"])
    steps, seen = trainer.steps(), list[int]()
    for _ in range(2):
        next(steps)
        seen.append(trainer.rounds.order.position)
    assert seen == [3, 6]


def test_large_rewards_that_differ_little_are_told_apart(tmp_path: Path) -> None:
    """A score in float32 has 24 bits: 1e8 and 1e8 + 1 are the same number there."""
    trainer = make(tmp_path, reward_fn=lambda outputs: [1e8 + i % 2 for i in range(len(outputs))], scale="none")
    trainer.rollout()
    assert trainer.store.take()["advantages"].tolist() == [-0.5, 0.5] * 6


def test_the_kl_in_the_reward_is_subtracted_before_the_baseline(tmp_path: Path) -> None:
    trainer = make(tmp_path, preset="rloo", kl_coef=0.3)
    with torch.no_grad():
        for parameter in trainer.policy().module.parameters():
            parameter.mul_(1.3)
    metrics = trainer.rollout()
    batch, policy = trainer.store.take(), trainer.policy()
    gap = (policy.score(batch).logprobs - policy.reference_score(batch).logprobs) * batch.action_mask
    kl = gap.sum(1).detach().double()
    assert metrics["kl/mean"] == pytest.approx(float(kl.mean()), rel=1e-4)
    total = (batch["scores"].double() - 0.3 * kl).view(-1, SIZE)
    expected = total - (total.sum(1, keepdim=True) - total) / (SIZE - 1)
    assert float(kl.abs().max()) > 0.1
    assert torch.allclose(batch["advantages"].double(), expected.flatten(), atol=1e-4)


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


def test_old_log_probs_are_those_before_the_first_step(tmp_path: Path) -> None:
    """Ratios are 1 in the first optimizer step of a round, and not in the next."""
    trainer, ratios = make(tmp_path, make_gpt2(), iterations=2), list[float]()
    compute = trainer.loss

    def watched(part: Any) -> Any:
        losses, metrics = compute(part)
        ratios.append(float((metrics["policy/ratio_mean"].detach() - 1).abs()[part.action_mask].max()))
        return losses, metrics

    trainer.loss = watched
    next(trainer.steps())
    assert len(ratios) == 2
    assert ratios[0] < 1e-5
    assert ratios[1] > 1e-3


def test_bounds_for_tokens_never_clip_the_ratio_of_a_response(tmp_path: Path) -> None:
    """The mean over a response moves much less than its tokens do: the preset's bounds are those of its paper."""
    fractions = []
    for i, bounds in enumerate(({}, {"clip_low": 0.2, "clip_high": 0.2})):
        trainer = make(tmp_path / str(i), preset="gspo", iterations=2, optimizer={"lr": 3e-4}, **bounds)
        metrics = next(trainer.steps())
        fractions.append(metrics["policy/clip_low_fraction"] + metrics["policy/clip_high_fraction"])
    assert fractions[0] > 0
    assert fractions[1] == 0


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


def test_a_sampler_with_old_weights_is_told_of(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A sampler that keeps the first weights looks like any other: its log-probs are what gives it away."""
    trainer = make(tmp_path, optimizer={"lr": 3e-2})
    sample, first = trainer.run.sampler, copy.deepcopy(trainer.policy())
    first.use_forward(first.module, autocast=nullcontext)
    trainer.run.sampler = lambda _, *given, **options: sample(first, *given, **options)
    steps = trainer.steps()
    gaps = [next(steps)["is/logprob_gap"] for _ in range(2)]
    said = capsys.readouterr().err
    assert gaps[0] < 1e-5
    assert gaps[1] > 1e-3
    assert said.count("the sampler's log-probs are not those of the policy that learns") == 1


def test_corrections_are_refused_where_sampler_and_trainer_have_other_distributions(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"is_correction = 'token_mask': with gen.top_k"):
        make(tmp_path, is_correction="token_mask", gen={"top_k": 3})


def test_only_uncertain_tokens_learn_but_all_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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


@pytest.mark.parametrize("preset", list(PRESETS))
def test_presets_set_defaults_that_options_override(preset: str) -> None:
    chosen = GRPOConfig(preset=preset)
    for name, value in PRESETS[preset].items():
        assert getattr(chosen, name) == value
        assert getattr(GRPOConfig(), name) != value
    assert GRPOConfig(preset=preset, norm="token", clip_low=0.1).norm == "token"
    assert GRPOConfig(preset=preset, norm="token", clip_low=0.1).clip_low == 0.1


@pytest.mark.parametrize("preset", list(PRESETS))
def test_every_preset_trains(tmp_path: Path, preset: str) -> None:
    trainer = make(tmp_path, preset=preset)
    before = copy.deepcopy(trainer.policy().module.state_dict())
    metrics = next(trainer.steps())
    assert all(math.isfinite(value) for value in metrics.values())
    assert any(not torch.equal(value, before[name]) for name, value in trainer.policy().module.state_dict().items())


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"num_generations": 1}, "trainer.num_generations = 1: a response is compared with others"),
        (
            {"rollouts": 10},
            "trainer.rollouts = 10: is not a multiple of trainer.num_generations = 4; set it to 8 or 12",
        ),
        ({"minibatches": 4}, "trainer.minibatches = 4: a round has 3 groups"),
        ({"kl_coef": 0.1, "kl_estimator": "k1"}, "trainer.kl_estimator = 'k1': its gradient in the loss is 0"),
        ({"is_low": 3.0}, "trainer.is_low = 3.0: is above trainer.is_high = 2.0"),
    ],
)
def test_options_that_contradict_each_other_are_refused(tmp_path: Path, options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        make(tmp_path, **options)
    assert said in str(caught.value)
