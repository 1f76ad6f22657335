from __future__ import annotations

import copy
import itertools
import math
import signal
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from grpo_making import SIZE, halves, make
from tokenizers.processors import TemplateProcessing
from transformers import PreTrainedTokenizerFast

import rlcore
from rlcore.errors import RewardError
from rlcore.optim.updater import Updater
from rlcore_testing.small import make_gpt2, make_tokenizer


def constant(value: Any) -> Callable[..., list[Any]]:
    return lambda outputs: [value] * len(outputs)


def test_equal_rewards_change_no_weights_and_cause_one_warning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trainer = make(tmp_path, reward_fn=constant(0.95))
    before = copy.deepcopy(trainer.policy().module.state_dict())
    steps = trainer.steps()
    metrics = [next(steps) for _ in range(2)]
    assert [each["group/zero_spread_fraction"] for each in metrics] == [1.0, 1.0]
    assert [each["policy/skipped"] for each in metrics] == [1.0, 1.0]
    assert all(math.isfinite(value) for each in metrics for value in each.values())
    assert all(torch.equal(value, before[name]) for name, value in trainer.policy().module.state_dict().items())
    warnings = capsys.readouterr().err
    assert warnings.count("no group of a round has two different scores") == 1
    assert warnings.count("an optimizer step is left out") == 1


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
    """DAPO #22 ends the run there, and AReaL #450 goes on without a word."""
    trainer = make(tmp_path, reward_fn=constant(reward), zero_spread="refill", refill_batches=2)
    metrics = next(trainer.steps())
    assert (metrics["group/refill_rounds"], metrics["group/dropped"], metrics["policy/skipped"]) == (2, 9, 0)
    assert "prompts are too easy or too hard" in capsys.readouterr().err


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


def test_rewards_that_are_none_for_all_responses_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(RewardError, match="12 of 12 responses have no score"):
        make(tmp_path, reward_fn=constant(None)).rollout()


def test_a_round_in_which_all_responses_are_masked_makes_no_optimizer_step(tmp_path: Path) -> None:
    trainer = make(tmp_path, mask_truncated=True, gen={"min_new_tokens": 6})
    metrics = next(trainer.steps())
    assert (metrics["response/truncated_fraction"], metrics["policy/skipped"]) == (1, 1)
    assert trainer.updater.num_updates == 0


def test_metrics_are_finite_where_whole_groups_are_masked(tmp_path: Path) -> None:
    """unsloth-zoo #1262: the mean KL of fully masked rows is NaN."""

    def truncated_groups(outputs: list[str]) -> list[float | None]:
        return [None if i < SIZE else float(i) for i in range(len(outputs))]

    trainer = make(tmp_path, reward_fn=truncated_groups, kl_coef=0.1, mask_truncated=True, entropy_coef=0.01)
    for _, metrics in zip(range(2), trainer.steps(), strict=False):
        assert {"kl/mean", "loss/kl", "policy/approx_kl_trained", "policy/clip_low_fraction"} <= {*metrics}
        assert all(math.isfinite(value) for value in metrics.values())


def test_responses_continue_prompts_that_begin_with_bos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """TRL #3520 samples from plain prompts without BOS."""
    plain = make_tokenizer()
    backend = plain.backend_tokenizer
    backend.post_processor = TemplateProcessing(single="? $A", special_tokens=[("?", 29)])
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="?", eos_token="</s>", pad_token="<pad>")
    monkeypatch.setattr("grpo_making.make_tokenizer", lambda: tokenizer)
    trainer = make(tmp_path, prompts=["ab", "?c"])
    trainer.rollout()
    batch = trainer.store.take()
    starts = {tuple(row[real & ~chosen].tolist()) for row, real, chosen in zip(
        batch.tokens, batch.mask, batch.action_mask, strict=True)}  # fmt: skip
    assert starts == {(29, 0, 1), (29, 2)}


def test_a_prompt_that_occurs_twice_in_a_round_has_two_groups(tmp_path: Path) -> None:
    """TRL #3045 merges them."""

    def by_place(outputs: list[str]) -> list[float]:
        return [float(i) for i in range(len(outputs))]

    trainer = make(tmp_path, prompts=["ab"], rollouts=8, reward_fn=by_place, scale="none")
    trainer.rollout()
    assert trainer.store.take()["advantages"].tolist() == [-1.5, -0.5, 0.5, 1.5] * 2


def test_each_round_takes_the_next_prompts(tmp_path: Path) -> None:
    """TRL #3675 and #4531 sample the same prompts in every micro-step."""
    asked, letters = list[str](), ["a", "b", "c", "d", "e", "f"]

    def noting(prompts: list[str], outputs: list[str]) -> list[float]:
        asked.extend(prompts)
        return halves(outputs)

    steps = make(tmp_path, prompts=letters, reward_fn=noting, minibatches=3).steps()
    for _ in range(2):
        next(steps)
    assert all(asked[i : i + SIZE] == asked[i : i + 1] * SIZE for i in range(0, 24, SIZE))
    assert sorted(asked[::SIZE]) == letters


@pytest.mark.slow
def test_a_run_that_is_interrupted_between_the_passes_of_a_round_repeats_and_loses_no_prompt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """TRL #3148: a run that resumed there repeated prompts. Here the round is finished, refilled groups included."""
    asked = list[str]()

    def noting(prompts: list[str], outputs: list[str]) -> list[float]:
        asked.extend(prompts[::SIZE])
        return [0.0 if prompt in "ace" else value for prompt, value in zip(prompts, halves(outputs), strict=True)]

    def train(name: str, *, resume: str = "never") -> Any:
        trainer = {
            "name": "grpo", "rollouts": 2 * SIZE, "num_generations": SIZE, "iterations": 2, "minibatches": 2,
            "zero_spread": "refill", "optimizer": {"lr": 1e-2},
        }  # fmt: skip
        return rlcore.train(
            make_gpt2(), tokenizer=make_tokenizer(), trainer=trainer, prompts=list("abcdefghij"), reward_fn=noting,
            gen={"max_new_tokens": 6}, eval={"at_end": False}, loggers=[],
            run={"root": str(tmp_path), "name": name, "steps": 3, "resume": resume},
        )  # fmt: skip

    whole, expected = train("whole"), asked.copy()
    asked.clear()
    step, calls = Updater.step, itertools.count(1)

    def interrupted(updater: Updater, *args: Any) -> Any:
        if next(calls) == 2:
            signal.raise_signal(signal.SIGINT)
        return step(updater, *args)

    with monkeypatch.context() as patch:
        patch.setattr(Updater, "step", interrupted)
        assert train("parts").run.step == 1
    parts = train("parts", resume="auto")
    assert asked == expected
    assert len(asked) > 6
    weights = zip(whole.policy.model.parameters(), parts.policy.model.parameters(), strict=True)
    assert all(torch.equal(one, other) for one, other in weights)


def test_small_differences_of_large_rewards_give_different_advantages(tmp_path: Path) -> None:
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


@pytest.mark.parametrize("options", [
    {"preset": "rloo"}, {"scale": "group"}, {"scale": "batch"}, {"combine": "normalize_then_sum"},
])  # fmt: skip
def test_equal_rewards_teach_nothing_while_the_policy_is_the_reference(tmp_path: Path, options: dict[str, Any]) -> None:
    """The KL there is rounding: it gave advantages of up to 1.24."""
    trainer = make(tmp_path, reward_fn=constant(1.0), **{"kl_coef": 0.05, "kl_in": "reward", **options})
    metrics = trainer.rollout()
    assert trainer.store.take()["advantages"].tolist() == [0.0] * 12
    assert metrics["group/zero_spread_fraction"] == 1.0


@pytest.mark.parametrize("zero_spread", ["keep", "drop"])
def test_where_rewards_are_equal_the_kl_teaches_unless_such_groups_are_dropped(
    tmp_path: Path, zero_spread: str
) -> None:
    trainer = make(tmp_path, preset="rloo", kl_coef=0.3, reward_fn=constant(1.0), zero_spread=zero_spread)
    with torch.no_grad():
        for parameter in trainer.policy().module.parameters():
            parameter.mul_(1.3)
    metrics = trainer.rollout()
    batch, policy = trainer.store.take(), trainer.policy()
    assert metrics["group/zero_spread_fraction"] == 1.0
    assert len(batch) == (12 if zero_spread == "keep" else 0)
    if zero_spread == "keep":
        gap = (policy.score(batch).logprobs - policy.reference_score(batch).logprobs) * batch.action_mask
        kl = gap.sum(1).detach().double().view(-1, SIZE)
        expected = -0.3 * (kl - (kl.sum(1, keepdim=True) - kl) / (SIZE - 1))
        assert torch.allclose(batch["advantages"].double(), expected.flatten(), atol=1e-4)


def test_old_log_probs_are_those_before_the_first_step(tmp_path: Path) -> None:
    """Ratios are 1 in the first optimizer step of a round, and not in the next."""
    trainer, ratios = make(tmp_path, make_gpt2(), iterations=2), list[float]()
    compute = trainer.loss

    def watched(part: Any) -> Any:
        losses, metrics = compute(part)
        ratios.append(float((metrics["policy/ratio_mean_trained"].detach() - 1).abs()[part.action_mask].max()))
        return losses, metrics

    trainer.loss = watched
    next(trainer.steps())
    assert len(ratios) == 2
    assert ratios[0] < 1e-5
    assert ratios[1] > 1e-3


def test_a_sampler_with_old_weights_causes_a_warning(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A sampler that keeps the first weights looks like any other: its log-probs are what gives it away."""
    trainer = make(tmp_path, optimizer={"lr": 3e-2})
    sample, first = trainer.run.sampling.sampler, copy.deepcopy(trainer.policy())
    first.use_forward(first.module, autocast=nullcontext)
    trainer.run.sampling.sampler = lambda _, *given, **options: sample(first, *given, **options)
    steps = trainer.steps()
    gaps = [next(steps)["is/logprob_gap"] for _ in range(2)]
    said = capsys.readouterr().err
    assert gaps[0] < 1e-5
    assert gaps[1] > 1e-3
    assert said.count("the sampler's log-probs are not those of the policy that learns") == 1
