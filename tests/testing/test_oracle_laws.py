"""A trainer that differs from its oracle is found: mutated losses, reductions and alignments, one at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import attrs
import pytest
import torch
from laws_held import Wrong, assert_broken
from own_oracles import Loss, distributions, ilql, ppo, sft
from sites import installed, wrong

import rlcore_ilql.loss
import rlcore_ilql.trainer
import rlcore_ppo.trainer
import rlcore_sft.trainer
from rlcore import ops
from rlcore.optim import Updater
from rlcore.ranks.rounds import micro_batches
from rlcore_ilql import trainer as ilql_trainer
from rlcore_testing import LawBroken, Recorded, Subject
from rlcore_testing.laws.trainer_oracle import it_equals_its_oracle, two_processes_equal_the_oracle
from rlcore_transformers.models.policy import ModelPolicy

SMALL: dict[str, Any] = {
    "sft": {"batch_size": 3},
    "ilql": {"batch_size": 3, "sync_every": 1, "target_rate": 0.5, "awac_beta": 0.5},
    "ppo": {
        "rollouts": 6, "batch_size": 3, "epochs": 2, "kl_coef": 0.1, "clip": 0.01, "bootstrap_truncated": True,
        "target_kl": None, "max_ratio": 1e9,
    },
}  # fmt: skip
ORACLES = {"sft": sft, "ilql": ilql, "ppo": ppo}
_score, _kl, _gae, _whiten = ModelPolicy.score, ops.kl_estimate, ops.gae, ops.whiten


def subject(name: str, **options: Any) -> Subject:
    """Make a trainer with its oracle the subject of a law."""
    return attrs.evolve(installed("trainers", f"rlcore-{name}:{name}", **SMALL[name], **options), oracles=ORACLES)


def mean_of_means(updater: Updater, batch: Any, loss: Any, meter: Any = None, **sizes: Any) -> torch.Tensor:
    parts = list(micro_batches(batch, sizes.get("size", 0), updater.ranks, tokens=sizes.get("tokens", 0)))
    for part, last in parts:
        with updater.exchanging(last):
            losses, metrics = loss(part)
            updater.backward(ops.masked_mean(losses, part.action_mask) / len(parts))
        meter.add(part.action_mask, {name: each.detach() for name, each in metrics.items()})
    return batch.num_actions.sum()


def mean_of_sequences(logprobs: torch.Tensor) -> torch.Tensor:
    return -logprobs / (logprobs != 0).sum(1, keepdim=True)


def without_temperature(policy: ModelPolicy, batch: Any, **options: Any) -> Any:
    return _score(policy, batch, **{name: value for name, value in options.items() if name != "temperature"})


def clipped_on_the_wrong_side(new: torch.Tensor, old: torch.Tensor, gain: torch.Tensor, *, clip: float) -> torch.Tensor:
    ratio = (new - old).exp()
    return torch.min(-gain * ratio, -gain * ratio.clamp(1 - clip, 1 + clip))


def next_column(values: torch.Tensor, _: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.pad(values[:, 1:], (0, 1))


def with_gradient(q: Any, values: Any, rewards: Any, action_mask: Any, *, gamma: float) -> torch.Tensor:
    return ((q - rewards - gamma * rlcore_ilql.loss.next_values(values, action_mask)) ** 2).sum(0)


MUTATIONS: dict[str, tuple[str, Any, str, Callable[..., Any], str]] = {
    "means of micro-batch means": ("sft", Updater, "accumulate", mean_of_means, "with micro_batch_size = 1"),
    "a mean over each sequence": ("sft", rlcore_sft.trainer, "nll", mean_of_sequences, "loss/total of step 1"),
    "labels shifted by one": ("sft", rlcore_sft.trainer, "nll", lambda x: -x.roll(1, 1), "loss/total of step 1"),
    "a loss twice as large": ("sft", ops, "masked_sum", lambda x, mask: 2 * x[mask].sum(), "loss/total of step 2"),
    "no temperature": ("ppo", ModelPolicy, "score", without_temperature, "of step 1"),
    "a ratio clipped on the wrong side": (
        "ppo", rlcore_ppo.trainer, "policy_loss", clipped_on_the_wrong_side, "loss/policy of step 1",
    ),
    "a ratio that is not clipped": (
        "ppo", rlcore_ppo.trainer, "policy_loss", lambda new, old, gain, **_: -gain * (new - old).exp(), "loss/policy",
    ),
    "a value loss that is not halved": (
        "ppo", rlcore_ppo.trainer, "value_loss", lambda v, _, goal, **__: (v - goal) ** 2, "of step 1",
    ),
    "a KL shifted by one token": (
        "ppo", ops, "kl_estimate", lambda *x, **o: _kl(*x, **o).roll(1, 1), "of step 1",
    ),
    "advantages divided by another deviation": (
        "ppo", ops, "whiten", lambda x, mask, **o: _whiten(x, mask, **o) * 0.99, "loss/policy of step 1",
    ),
    "no value after a truncated response": (
        "ppo", ops, "gae", lambda *x, **o: _gae(*x, **{**o, "bootstrap": None}), "of step 1",
    ),
    "targets that stay": ("ilql", ilql_trainer, "sync_targets", lambda *_: None, "of step 2"),
    "a gradient through the backup": ("ilql", rlcore_ilql.trainer, "q_loss", with_gradient, "of step"),
    "the next column for the next chosen token": (
        "ilql", rlcore_ilql.loss, "next_values", next_column, "of step 1",
    ),
    "an expectile of the wrong side": (
        "ilql", rlcore_ilql.trainer, "value_loss",
        lambda v, q, tau: rlcore_ilql.loss.value_loss(v, q, tau=1 - tau), "of step 1",
    ),
}  # fmt: skip
"""Name → trainer, what is replaced, by what, and a part of the message."""


@pytest.mark.slow
@pytest.mark.parametrize("name", ["sft", "ilql"])
def test_training_equals_an_independent_implementation(name: str) -> None:
    it_equals_its_oracle(subject(name))


@pytest.mark.slow
@pytest.mark.parametrize("name", MUTATIONS)
def test_a_mutated_loss_differs_from_the_independent_implementation(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    trainer, place, attribute, mutant, says = MUTATIONS[name]
    monkeypatch.setattr(place, attribute, mutant)
    with pytest.raises(LawBroken) as caught:
        it_equals_its_oracle(subject(trainer))
    assert says in str(caught.value)


@pytest.mark.slow
def test_ppo_with_every_clip_and_exact_entropy_equals_an_independent_implementation() -> None:
    it_equals_its_oracle(subject("ppo", clip_value=0.05, kl_estimator="full", entropy_coef=0.01))


@pytest.mark.slow
def test_ppo_with_state_between_rounds_equals_an_independent_implementation() -> None:
    it_equals_its_oracle(
        subject("ppo", kl_target=1.0, kl_horizon=100, score_scaling="running", missing_eos_penalty=0.1, score_max=0.4)
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", ORACLES)
def test_two_processes_equal_an_independent_implementation(name: str) -> None:
    two_processes_equal_the_oracle(subject(name))


@pytest.mark.slow
def test_ppo_ends_its_epochs_where_the_independent_implementation_does() -> None:
    it_equals_its_oracle(attrs.evolve(subject("ppo"), options={**SMALL["ppo"], "epochs": 4, "target_kl": 2e-4}))


@pytest.mark.parametrize(("oracle", "says"), [
    (lambda run: iter(()), "it yields 0"),
    (lambda run: ((run.model.lm_head.weight.sum(), {}) for _ in range(99)), "it yields more"),
    (lambda run: ((run.model.lm_head.weight.sum(), {}) for _ in run.steps), "to state a metric"),
    (lambda run: ((run.model.lm_head.weight.sum(), {"loss": 0}) for _ in run.steps), "to log loss, which"),
])  # fmt: skip
def test_an_oracle_that_cannot_be_compared_is_named(oracle: Any, says: str) -> None:
    with pytest.raises(LawBroken) as caught:
        it_equals_its_oracle(attrs.evolve(subject("sft"), oracles={"sft": oracle}))
    assert says in str(caught.value)


def reinforce(run: Recorded) -> Iterator[Loss]:
    """A trainer that does not call `updater.accumulate` learns from the rounds alone."""
    assert run.steps == [[], []]
    for responses in run.rounds:
        mean = sum(each.score for each in responses) / len(responses)
        terms = [(mean - each.score) * distributions(run.model, each, run.gen["temperature"])[1] for each in responses]
        loss = torch.cat(terms).mean()
        yield loss, {"loss/policy": loss}


@pytest.mark.slow
@pytest.mark.usefixtures("wrong_site")
def test_a_trainer_with_a_loop_of_its_own_equals_an_independent_implementation() -> None:
    it_equals_its_oracle(attrs.evolve(wrong("trainers", "right"), oracles={"right": reinforce}))


@pytest.mark.slow
@pytest.mark.usefixtures("wrong_site")
def test_two_processes_equal_the_oracle_only_if_a_trainer_looks_at_all_shares() -> None:
    who = "looks-at-its-share"
    case = Wrong("trainers", "two_processes_equal_the_oracle", who, "in two processes")
    assert_broken(case, attrs.evolve(wrong("trainers", who), oracles={who: reinforce}))


def test_laws_of_oracles_apply_only_to_trainers_with_an_oracle() -> None:
    for law in (it_equals_its_oracle, two_processes_equal_the_oracle):
        assert law.when(subject("sft"))
        assert not law.when(installed("trainers", "rlcore-sft:sft"))
