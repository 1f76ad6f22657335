"""The loss of GRPO and its presets in plain torch, row by row, without padding."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, get_args, get_type_hints

import pytest
import torch
from depths import by_day
from held_laws import hold
from torch import Tensor

import rlcore_grpo.advantages
import rlcore_grpo.trainer
from rlcore.config import structure
from rlcore_grpo.config import GRPOConfig
from rlcore_grpo.loss import clipped_loss
from rlcore_testing import LawBroken

SMALL = {"rollouts": 8, "num_generations": 4, "iterations": 2}
CLOSE = {"clip_low": 0.01, "clip_high": 0.02}
VARIANTS: dict[str, dict[str, Any]] = {
    "no preset": SMALL,
    **{
        preset: {**SMALL, "preset": preset} for preset in ("dr_grpo", "dapo", "gspo", "luspo", "cispo", "vespo", "rloo")
    },
    "KL in the loss": {
        **SMALL,
        **CLOSE,
        "preset": "grpo",
        "kl_coef": 0.1,
        "kl_ratio": True,
        "sync_ref_every": 2,
        "mask_truncated": True,
    },
    "a constant norm of masked responses": {**SMALL, "preset": "dr_grpo", "mask_truncated": True},
    "minibatches": {**SMALL, **CLOSE, "minibatches": 2},
    "TRL's RLOO": {**SMALL, **CLOSE, "preset": "rloo", "level": "product", "norm": "sequence"},
    "a KL with the sum over responses": {**SMALL, "preset": "luspo", "kl_coef": 0.1, "mask_truncated": True},
    "other weights of vespo": {
        **SMALL,
        "preset": "vespo",
        "minibatches": 2,
        "vespo_k": 0.5,
        "vespo_lambda": 4.0,
        "vespo_k_negative": 1.5,
        "vespo_lambda_negative": 0.7,
    },
    "sapo": {**SMALL, "surrogate": "sapo", "scale": "batch", "kl_coef": 0.1, "kl_estimator": "k2"},
    "other temperatures of sapo": {**SMALL, "surrogate": "sapo", "sapo_tau": 2.0, "sapo_tau_negative": 0.5},
}


def grpo(run: Any) -> Iterator[tuple[Tensor, dict[str, float]]]:
    """Yield the loss of each optimizer step; every group has spread, or a round is one optimizer step."""
    options, steps, made = run.options, iter(run.steps), 0
    for responses, end in zip(run.rounds, run.ends, strict=True):
        with torch.no_grad():
            old = {id(each): logprobs(run, run.model, each) for each in responses}
            ref = {id(each): logprobs(run, run.reference, each) for each in responses}
        advantage = advantages(run, responses, old, ref)
        counted = {id(each) for each in responses if each.ended or not options["mask_truncated"]}
        sums, count = 0.0, 0
        while made < end:
            rows = next(steps)
            every_row = responses if options["minibatches"] == 1 else rows
            rows = [each for each in every_row if id(each) in counted]
            found = [_response(run, each, advantage[id(each)], old[id(each)], ref[id(each)]) for each in rows]
            sums, count = sums + float(sum(policy.sum() for policy, _ in found)), count + sum(len(x) for x, _ in found)
            every = [loss for _, loss in found]
            if options["norm"] == "token":
                loss = torch.cat(every).mean()
            elif options["norm"] == "sequence":
                loss = torch.stack([each.mean() for each in every]).mean()
            elif options["norm"] == "sum":
                loss = torch.stack([each.sum() for each in every]).mean()
            else:
                loss = torch.stack([each.sum() for each in every]).sum() / (len(every_row) * run.gen["max_new_tokens"])
            yield loss, {"loss/policy": sums / count}
            made += 1
            if options["sync_ref_every"] and made % options["sync_ref_every"] == 0:
                with torch.no_grad():
                    for own, learned in zip(run.reference.parameters(), run.model.parameters(), strict=True):
                        own.lerp_(learned, options["sync_ref_alpha"])


def advantages(run: Any, responses: list[Any], old: dict[int, Tensor], ref: dict[int, Tensor]) -> dict[int, float]:
    options, size, longest = run.options, run.options["num_generations"], run.gen["max_new_tokens"]
    scores = []
    for each in responses:
        score, length = each.score, sum(each.action_mask)
        if options["overlong_buffer"]:
            room = options["overlong_buffer"] * (longest if options["overlong_buffer"] < 1 else 1)
            score -= options["overlong_penalty"] * min(max(length - (longest - room), 0) / room, 1)
        if options["kl_in"] == "reward":
            score -= options["kl_coef"] * float(_kl(options, old[id(each)] - ref[id(each)]).sum())
        scores.append(score)
    found = {}
    for start in range(0, len(scores), size):
        group = scores[start : start + size]
        for i, score in enumerate(group):
            others = group[:i] + group[i + 1 :] if options["baseline"] == "loo" else group
            advantage = score - sum(others) / len(others)
            if options["scale"] != "none":
                spread = torch.tensor(group if options["scale"] == "group" else scores).std()
                advantage /= float(spread) + 1e-4
            found[id(responses[start + i])] = advantage
    return found


def _response(run: Any, response: Any, advantage: float, old: Tensor, ref: Tensor) -> tuple[Tensor, Tensor]:
    """Return the surrogate and the loss of each token of a response."""
    options, new = run.options, logprobs(run, run.model, response)
    token_ratio = (new - old).exp()
    whole = {"sequence": (new - old).mean(), "product": (new - old).sum()}.get(options["level"])
    ratio = token_ratio if whole is None else whole.exp().expand(len(new))
    if options["surrogate"] == "vespo":
        w, suffix = float(token_ratio.prod()), "" if advantage >= 0 else "_negative"
        k, decay = options[f"vespo_k{suffix}"], options[f"vespo_lambda{suffix}"]
        policy = -(w**k) * math.exp(decay - decay * w) * advantage * new
        return policy, policy
    policy = torch.stack([_surrogate(options, rho, logp, advantage) for rho, logp in zip(ratio, new, strict=True)])
    loss = policy
    if options["kl_in"] == "loss" and options["kl_coef"]:
        loss = loss + options["kl_coef"] * _kl(options, new - ref) * (token_ratio if options["kl_ratio"] else 1)
    return policy, loss


def _surrogate(options: Any, ratio: Tensor, logprob: Tensor, advantage: float) -> Tensor:
    if options["surrogate"] == "cispo":
        return -min(float(ratio), options["cispo_cap"]) * advantage * logprob
    if options["surrogate"] == "sapo":
        tau = options["sapo_tau"] if advantage > 0 else options["sapo_tau_negative"]
        return -4 / tau * torch.sigmoid(tau * (ratio - 1)) * advantage
    bound = min(max(float(ratio), 1 - options["clip_low"]), 1 + options["clip_high"])
    gain = ratio * advantage if float(ratio) * advantage <= bound * advantage else 0 * ratio + bound * advantage
    if options["dual_clip"] is not None and advantage < 0 and float(gain) < options["dual_clip"] * advantage:
        return 0 * ratio - options["dual_clip"] * advantage
    return -gain


def _kl(options: Any, gap: Tensor) -> Tensor:
    return {"k1": gap, "k2": gap**2 / 2, "k3": (-gap).exp() - 1 + gap}[options["kl_estimator"]]


def logprobs(run: Any, model: Any, row: Any) -> Tensor:
    """Return the log-prob of each token of a response, at the temperature of sampling."""
    logits = model(torch.tensor([row.tokens])).logits[0] / run.gen["temperature"]
    chosen = [t for t, own in enumerate(row.action_mask) if own]
    return torch.stack([logits[t - 1].log_softmax(-1)[row.tokens[t]] for t in chosen])


def check(law: str, variant: str) -> None:
    hold("rlcore-grpo", law, options={"grpo": VARIANTS[variant]}, oracles={"grpo": grpo})


@pytest.mark.slow
@pytest.mark.parametrize("variant", by_day(VARIANTS, ["KL in the loss", "dapo", "minibatches", "no preset", "gspo"]))
def test_training_equals_an_independent_implementation(variant: str) -> None:
    check("it_equals_its_oracle", variant)


@pytest.mark.parametrize("option", ["preset", "surrogate", "level", "norm", "scale", "baseline", "kl_in"])
def test_every_choice_of_the_loss_is_compared_with_an_independent_implementation(option: str) -> None:
    choices = get_args(get_type_hints(GRPOConfig)[option])
    names = {name for each in choices for name in (get_args(each) or [each])} - {type(None)}
    assert names - {getattr(structure(GRPOConfig, each, where=""), option) for each in VARIANTS.values()} == set()


@pytest.mark.slow
@pytest.mark.parametrize("variant", ["KL in the loss", "minibatches"])
def test_two_processes_equal_an_independent_implementation(variant: str) -> None:
    check("two_processes_equal_the_oracle", variant)


MUTATIONS: dict[str, tuple[str, Any, str, Any]] = {
    "bounds exchanged": (
        "minibatches", rlcore_grpo.trainer, "clipped_loss",
        lambda *x, low, high, **o: clipped_loss(*x, low=high, high=low, **o),
    ),
    "a mean over all tokens": (
        "KL in the loss", rlcore_grpo.trainer, "token_weights",
        lambda lengths, **_: (torch.ones(len(lengths), 1), float(lengths.sum())),
    ),
    "the ratio of a token for that of a response": (
        "gspo", rlcore_grpo.trainer, "ratios", lambda new, old, mask, **_: torch.where(mask, new - old, 0.0).exp(),
    ),
    "another deviation": ("no preset", rlcore_grpo.advantages, "EPSILON", 2e-4),
}  # fmt: skip


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_mutated_loss_differs_from_the_independent_implementation(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    variant, place, attribute, mutant = MUTATIONS[name]
    monkeypatch.setattr(place, attribute, mutant)
    with pytest.raises(LawBroken, match="of step"):
        check("it_equals_its_oracle", variant)
