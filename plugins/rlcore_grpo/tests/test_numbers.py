"""Metrics are means over all tokens that they name, and a number that is not finite stops the round."""

from __future__ import annotations

import copy
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from grpo_making import SIZE, gradients, halves, make

from rlcore.errors import Diverged
from rlcore_testing.small import make_llama

LEAVE_THE_POLICY = [
    {}, {"micro_batch_size": 1}, {"micro_batch_tokens": 24}, {"kl_coef": 0.1}, {"kl_coef": 0.1, "kl_in": "reward"},
    {"entropy_coef": 0.1}, {"iterations": 2}, {"is_correction": "token_truncate"}, {"norm": "constant"},
]  # fmt: skip
"""Options that change neither the policy that samples nor its responses in the first round."""


def first_group_alone(outputs: list[str]) -> list[float]:
    return [float(len(output)) if i < SIZE else 1.0 for i, output in enumerate(outputs)]


def logprobs_by_hand(trainer: Any, batch: Any) -> list[torch.Tensor]:
    """Return the log-probs of the chosen tokens of each response, in float64, one response at a time."""
    model, found = copy.deepcopy(trainer.policy().module.model).double(), []
    for tokens, mask, chosen in zip(batch.tokens, batch.mask, batch.action_mask, strict=True):
        ids = tokens[mask]
        with torch.no_grad():
            rows = model(ids[None]).logits[0, :-1].log_softmax(1).gather(1, ids[1:, None])[:, 0]
        found.append(rows[chosen[mask][1:]])
    return found


@pytest.mark.slow
def test_entropy_and_policy_loss_are_means_over_all_tokens_of_the_round(tmp_path: Path) -> None:
    """Of three groups, two have no spread, and are left out of the forward pass where nothing needs them."""
    model = make_llama()
    for i, options in enumerate(LEAVE_THE_POLICY):
        trainer = make(tmp_path / str(i), copy.deepcopy(model), reward_fn=first_group_alone, **options)
        metrics = trainer.rollout()
        batch = trainer.store.take()
        found = logprobs_by_hand(trainer, batch)
        entropy = -float(torch.cat(found).mean())
        loss = -sum(float(a) * len(row) for a, row in zip(batch["advantages"].double(), found, strict=True))
        metrics |= trainer.update(batch)
        assert metrics["policy/entropy"] == pytest.approx(entropy, rel=1e-5), options
        if "iterations" not in options:  # the loss of the second pass is that of another policy
            assert metrics["loss/policy"] == pytest.approx(loss / sum(map(len, found)), rel=1e-4), options
        all_are_trained = bool(options.get("entropy_coef") or (options.get("kl_coef") and "kl_in" not in options))
        share = sum(map(len, found[:SIZE])) / sum(map(len, found))
        assert metrics["tokens/trained_fraction"] == pytest.approx(1.0 if all_are_trained else share), options


@pytest.mark.parametrize(
    "options",
    [
        {"top_entropy": 0.3}, {"off_policy_mask": 0.5}, {"is_correction": "token_mask", "is_high": 1.0},
        {"surrogate": "cispo"}, {"dual_clip": 2.0},
    ],
    ids=str,
)  # fmt: skip
def test_the_tokens_that_have_a_gradient_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    """They are counted here in the gradients of the log-probs; every second response is one of an older policy."""
    trainer = make(tmp_path, **options)
    trainer.rollout()
    batch = trainer.store.take()
    shift = (torch.arange(len(batch)) % 2)[:, None] * batch.action_mask
    if "dual_clip" in options:
        batch = batch.with_columns(old_logprobs=batch["sampler_logprobs"] - shift)
    if "off_policy_mask" in options:
        batch = batch.with_columns(sampler_logprobs=batch["sampler_logprobs"] + shift)
    if "is_correction" in options:
        batch = batch.with_columns(is_weights=1.0 - shift)
    passes, score = [], trainer.policy().score

    def watched(*given: Any, **more: Any) -> Any:
        passes.append(score(*given, **more))
        passes[-1].logprobs.retain_grad()
        return passes[-1]

    monkeypatch.setattr(trainer.policy(), "score", watched)
    metrics, counted = trainer.update(batch), int(batch.action_mask.sum())
    learned = sum(int((each.logprobs.grad != 0).sum()) for each in passes)
    stopped = sum(metrics.get(f"policy/{name}_fraction", 0.0) for name in ("dual_clip", "clip_low", "clip_high"))
    assert 0 < learned < counted
    assert metrics["tokens/trained_fraction"] == pytest.approx(learned / counted + stopped)
    lower = (shift.bool() & (batch["advantages"] < 0)[:, None]).sum() / counted
    for name in ("off_policy", "dual_clip"):
        found = metrics.get(f"policy/{name}_fraction")
        assert found == (pytest.approx(float(lower)) if {name, f"{name}_mask"} & set(options) else None)
    assert ("policy/clip_low_fraction" in metrics) is ("surrogate" not in options)
    if "dual_clip" not in options:
        assert metrics["policy/ratio_mean_trained"] == pytest.approx(1.0)


def test_weights_of_a_correction_are_means_over_all_tokens_of_the_round(tmp_path: Path) -> None:
    trainer = make(tmp_path, reward_fn=first_group_alone, is_correction="token_mask", is_high=1.0)
    trainer.rollout()
    batch = trainer.store.take()
    weights = torch.linspace(0, 2, batch.action_mask.numel()).view(batch.action_mask.shape)
    weights[-1] = 0  # of a group that is left out
    metrics = trainer.update(batch.with_columns(is_weights=weights))
    chosen = weights[batch.action_mask].double()
    assert metrics["is/weight_mean"] == pytest.approx(float(chosen.mean()))
    assert metrics["is/masked_fraction"] == pytest.approx(float((chosen == 0).double().mean()))


def test_a_round_without_spread_has_the_metrics_of_other_rounds_and_the_rate_of_the_schedule(tmp_path: Path) -> None:
    optimizer = {"lr": 1e-2, "scheduler": "linear", "scheduler_options": {}}
    trainer = make(tmp_path / "none", reward_fn=lambda outputs: [1.0] * len(outputs), optimizer=optimizer)
    other = make(tmp_path / "some", reward_fn=halves, optimizer=optimizer)
    metrics, usual = next(trainer.steps()), next(other.steps())
    of_the_pass = {
        "is/logprob_gap",
        "is/kl",
        "grad/norm",
        "policy/approx_kl_trained",
        "policy/ratio_mean_trained",
    }
    assert set(usual) - set(metrics) == of_the_pass
    assert (metrics["loss/policy"], metrics["policy/skipped"], metrics["tokens/trained_fraction"]) == (0.0, 1.0, 0.0)
    assert metrics["policy/entropy"] > 0
    assert metrics["lr"] == usual["lr"] == pytest.approx(1e-2)


def test_the_entropy_of_a_sampler_without_log_probs_names_the_tokens_it_covers(tmp_path: Path) -> None:
    trainer = make(tmp_path, reward_fn=first_group_alone)
    trainer.rollout()
    batch = trainer.store.take()
    bare = batch.with_only(*(name for name in batch.columns if name != "sampler_logprobs"))
    metrics = trainer.update(bare)
    expected = torch.cat(logprobs_by_hand(make(tmp_path / "new"), batch)[:SIZE])
    assert metrics["policy/entropy_trained"] == pytest.approx(-float(expected.mean()), rel=1e-5)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
@pytest.mark.parametrize("options", [
    {"preset": "rloo"}, {"kl_coef": 0.1, "kl_in": "reward", "combine": "normalize_then_sum"},
])  # fmt: skip
def test_a_kl_of_nan_does_not_count_as_a_missing_score(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], bad: float
) -> None:
    trainer = make(tmp_path, **options)
    score = trainer.policy().reference_score

    def broken(part: Any, **given: Any) -> Any:
        outputs = score(part, **given)
        outputs.logprobs[0, part.action_mask[0]] = bad
        return outputs

    monkeypatch.setattr(trainer.policy(), "reference_score", broken)
    with pytest.raises(Diverged, match=r"step 1: the advantage of response 0 .* and a KL of (nan|inf|-inf) nats"):
        trainer.rollout()


def test_a_constant_norm_divides_by_all_responses_also_where_truncated_ones_are_masked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Masking a response leaves the gradient of the others as it is."""
    model, options = make_llama(), {"preset": "dr_grpo", "reward_fn": halves}
    plain, masked = (
        make(tmp_path / str(choice), copy.deepcopy(model), mask_truncated=choice, **options) for choice in (False, True)
    )
    for trainer in (plain, masked):
        trainer.rollout()
    batch, other = plain.store.take(), masked.store.take()
    assert 0 < int(batch.ended.sum()) < len(batch)
    # Without advantages, truncated responses have no gradient, and all else of the plain loss is the same.
    silent = batch.with_columns(advantages=batch["advantages"] * batch.ended)
    seen, expected = (gradients(*pair, monkeypatch) for pair in ((masked, other), (plain, silent)))
    for name, gradient in expected.items():
        assert torch.allclose(seen[name], gradient, atol=1e-7, rtol=1e-4), name
