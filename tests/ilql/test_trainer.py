from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from plain_ilql import DENSE, PLACED, REWARDS, TALKS, Make, Plain, make_ilql
from torch import nn
from transformers import PreTrainedModel

import rlcore
from rlcore.errors import DataError
from rlcore_testing.small import make_bart, make_gpt2, make_llama, make_t5, make_tokenizer

MODELS = [make_gpt2, make_llama, make_t5, make_bart]
OPTIONS = {"gamma": 0.9, "tau": 0.8, "cql_coef": 0.3, "awac_coef": 0.5, "awac_beta": 0.7}


def at_last(rewards: list[float]) -> list[list[float]]:
    return [[0.0] * (len(placed) - 1) + [reward] for placed, reward in zip(PLACED, rewards, strict=True)]


@pytest.mark.parametrize(
    ("rewards", "placed", "num_q_heads"),
    [(REWARDS, at_last(REWARDS), 2), (DENSE, PLACED, 1), (DENSE, PLACED, 3)],
    ids=["one a sample", "dense, one Q", "dense, three Qs"],
)
@pytest.mark.parametrize("make_model", MODELS)
def test_losses_and_gradients_equal_the_formulas(
    make_trainer: Make,
    make_model: Callable[[], PreTrainedModel],
    monkeypatch: pytest.MonkeyPatch,
    rewards: list[Any],
    placed: list[list[float]],
    num_q_heads: int,
) -> None:
    model, untouched = make_model(), make_model()
    trainer = make_ilql(
        make_trainer,
        model,
        micro_batch_size=2,
        num_q_heads=num_q_heads,
        inputs={"rewards": rewards},
        model={"unfrozen_layers": 1},  # required to distinguish trained parameters from frozen ones
        **OPTIONS,
    )
    part(trainer)
    plain = Plain(trainer.policy(), untouched)
    assert len(plain.q) == len(plain.targets) == num_q_heads
    terms = plain.losses(trainer.run.samples, placed, OPTIONS)
    total = terms["q"] + terms["v"] + 0.3 * terms["cql"] + 0.5 * terms["awac"]
    total.backward()
    monkeypatch.setattr(trainer.updater, "step", lambda *_: None)
    metrics = next(trainer.steps())
    assert metrics["loss/total"] == pytest.approx(total.item(), rel=1e-5)
    for name, term in terms.items():
        assert metrics[f"loss/{name}"] == pytest.approx(term.item(), rel=1e-5)
    expected = plain.named()
    trained = {name: weight for name, weight in trainer.policy().module.named_parameters() if weight.requires_grad}
    assert any(name.startswith("q_heads.heads") for name in trained)
    for name, weight in trained.items():
        assert torch.allclose(weight.grad, expected[name].grad, atol=2e-6), name


def part(trainer: Any) -> None:
    """Change the target Q-heads, as training would, so that they differ from the Q-heads."""
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for weight in trainer.policy().module.q_heads.targets.parameters():
            weight.add_(torch.randn(weight.shape, generator=generator), alpha=0.2)


def targets(trainer: Any) -> list[torch.Tensor]:
    return [weight.detach().clone() for weight in trainer.policy().module.q_heads.targets.parameters()]


def heads(trainer: Any) -> list[torch.Tensor]:
    return [weight.detach().clone() for weight in trainer.policy().module.q_heads.heads.parameters()]


@pytest.mark.parametrize("sync_every", [1, 3])
def test_targets_move_after_every_so_many_optimizer_steps_and_at_no_other_time(
    make_trainer: Make, tiny_gpt2: PreTrainedModel, sync_every: int
) -> None:
    trainer = make_ilql(
        make_trainer, tiny_gpt2, sync_every=sync_every, target_rate=0.25, batch_size=2, optimizer={"lr": 0.01}
    )
    steps = trainer.steps()
    before = targets(trainer)
    for number in range(1, 9):  # three steps per pass: target syncs do not depend on passes
        metrics = next(steps)
        after = targets(trainer)
        if number % sync_every == 0:
            mixed = [0.75 * old + 0.25 * q for old, q in zip(before, heads(trainer), strict=True)]
            assert all(torch.allclose(a, b, atol=1e-7) for a, b in zip(after, mixed, strict=True))
            assert not any(a.equal(b) for a, b in zip(after, before, strict=True))
        else:
            assert all(a.equal(b) for a, b in zip(after, before, strict=True))
        assert metrics["q/syncs"] == number // sync_every
        before = after


def test_a_skipped_optimizer_step_does_not_count_for_the_sync_of_targets(
    make_trainer: Make, tiny_gpt2: PreTrainedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = make_ilql(make_trainer, tiny_gpt2, sync_every=2, target_rate=1.0, optimizer={"lr": 0.01})
    steps = trainer.steps()
    next(steps)
    next(steps)
    synced = targets(trainer)
    with monkeypatch.context() as patch:
        patch.setattr(trainer.updater, "step", lambda *_: trainer.updater.skip())  # as in an fp16 overflow
        part(trainer)
        parted = targets(trainer)
        assert next(steps)["q/syncs"] == 1
        assert all(a.equal(b) for a, b in zip(targets(trainer), parted, strict=True))
    assert not any(a.equal(b) for a, b in zip(synced, parted, strict=True))


def test_targets_get_no_gradient(make_trainer: Make, tiny_gpt2: PreTrainedModel) -> None:
    trainer = make_ilql(make_trainer, tiny_gpt2)
    trainer.updater.step = lambda *_: None
    next(trainer.steps())
    module = trainer.policy().module
    assert all(weight.grad is None and not weight.requires_grad for weight in module.q_heads.targets.parameters())
    assert all(weight.grad is not None for weight in module.q_heads.heads.parameters())


@pytest.mark.slow
def test_a_run_that_was_resumed_syncs_at_the_same_steps(tmp_path: Any) -> None:
    def go(name: str, steps: int, resume: str = "never") -> tuple[list[float], list[torch.Tensor]]:
        result = rlcore.train(
            make_gpt2(),
            tokenizer=make_tokenizer(),
            trainer={"name": "ilql", "batch_size": 2, "sync_every": 3, "target_rate": 0.5, "optimizer": {"lr": 0.01}},
            samples=TALKS,
            rewards=DENSE,
            run={"root": str(tmp_path), "name": name, "steps": steps, "resume": resume},
            loggers=[],
        )
        module = result.run.learner.module
        return result.metrics["q/syncs"], [weight.detach() for weight in module.parameters()]

    expected = go("whole", 7)
    assert expected[0] == 2
    go("parts", 2)
    go("parts", 4, "auto")
    got = go("parts", 7, "auto")
    assert got[0] == 2
    assert all(a.equal(b) for a, b in zip(got[1], expected[1], strict=True))


def test_validation_reports_the_loss_terms_that_need_no_rewards(
    make_trainer: Make, tiny_model: PreTrainedModel
) -> None:
    untouched = copy.deepcopy(tiny_model)
    for module in tiny_model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.5
    trainer = make_ilql(make_trainer, tiny_model, batch_size=2, dropout=True, inputs={"eval_samples": TALKS}, **OPTIONS)
    part(trainer)
    terms = Plain(trainer.policy(), untouched).losses(trainer.run.data.eval_samples, at_last([0.0] * 5), OPTIONS)
    (evaluation,) = trainer.run.evaluations
    metrics = evaluation()
    for name in ("v", "cql", "awac"):
        assert metrics[f"loss/{name}"] == pytest.approx(terms[name].item(), rel=1e-5)
    assert metrics.keys() == {"loss/v", "loss/cql", "loss/awac", "q/mean", "value/mean", "advantage/mean"}
    assert trainer.policy().module.training


def test_dropout_is_off_by_default(make_trainer: Make, tiny_gpt2: PreTrainedModel) -> None:
    for module in tiny_gpt2.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.5
    losses = {}
    for dropout in ({}, {"dropout": True}):
        trainer = make_ilql(make_trainer, copy.deepcopy(tiny_gpt2), optimizer={"lr": 1e-12}, **dropout)
        steps = trainer.steps()
        losses[bool(dropout)] = [next(steps)["loss/total"] for _ in range(2)]
    assert losses[False][0] == pytest.approx(losses[False][1], rel=1e-5)
    assert losses[True][0] != pytest.approx(losses[True][1], rel=1e-3)


def test_epochs_are_converted_to_steps(make_trainer: Make, tiny_gpt2: PreTrainedModel) -> None:
    trainer = make_ilql(make_trainer, tiny_gpt2, batch_size=2, run={"epochs": 2.5})
    assert trainer.run.total_steps == 8  # three steps per pass


def test_returns_are_standardised_by_default(make_trainer: Make, tiny_gpt2: PreTrainedModel) -> None:
    trainer = make_ilql(make_trainer, tiny_gpt2, standardise_rewards=True)
    metrics = next(trainer.steps())
    # of 1, -.5, 2, .25, -1: mean .35, squared distances .4225 + .7225 + 2.7225 + .01 + 1.8225, over 4
    assert metrics["returns/mean"] == pytest.approx(0.35)
    assert metrics["returns/std"] == pytest.approx(1.425**0.5)
    sums = [sum(row) for row in trainer.returns.rewards]
    assert sums == pytest.approx([(reward - 0.35) / 1.425**0.5 for reward in REWARDS])


def test_equal_rewards_are_learned_from_with_a_warning(
    make_trainer: Make, tiny_gpt2: PreTrainedModel, capsys: Any
) -> None:
    inputs = {"rewards": [2.0] * len(TALKS)}
    trainer = make_ilql(make_trainer, tiny_gpt2, standardise_rewards=True, inputs=inputs, optimizer={"lr": 0.01})
    assert capsys.readouterr().err.count("all returns are equal") == 1
    steps = trainer.steps()
    losses = [next(steps)["loss/total"] for _ in range(30)]
    assert losses[-1] < losses[0] / 2


@pytest.mark.slow
@pytest.mark.parametrize("make_model", [make_gpt2, make_t5])
def test_sampling_steered_by_q_prefers_the_rewarded_token(
    make_trainer: Make, make_model: Callable[[], PreTrainedModel]
) -> None:
    # After `q`, a and b are equally frequent; one has a higher reward.
    samples, rewards = [["q", "a"], ["q", "b"]] * 4, [1.0, -1.0] * 4
    trainer = make_ilql(
        make_trainer, make_model(), inputs={"samples": samples, "rewards": rewards}, target_rate=0.5, sync_every=1,
        optimizer={"lr": 0.01, "weight_decay": 0.0},
    )  # fmt: skip
    steps = trainer.steps()
    for _ in range(120):
        next(steps)
    words = trainer.run.learner.tokenizer
    step = trainer.policy().decoder([words.convert_tokens_to_ids(["q"])], max_new_tokens=1, advantages=True).start()
    a, b = words.convert_tokens_to_ids(["a", "b"])
    chances = step.logits[0].softmax(-1)
    assert float(chances[a] + chances[b]) > 0.9
    assert 0.25 < float(chances[a]) < 0.75  # imitates the data frequencies
    assert step.advantages is not None
    assert float(step.advantages[0, a] - step.advantages[0, b]) > 1


@pytest.mark.parametrize(
    ("rewards", "complaint"),
    [
        ([1, 2, [1, 2, 3], 4, 5], r"rewards\[2\]: has 3 numbers, but the sample has 2 output\(s\) of 13 tokens"),
        ([1, 2, 3, 4, float("nan")], r"rewards\[4\]: is nan, not a finite number"),
    ],
)
def test_rewards_that_cannot_be_used_are_refused_before_the_first_step(
    make_trainer: Make, tiny_gpt2: PreTrainedModel, rewards: list[Any], complaint: str
) -> None:
    with pytest.raises(DataError, match=complaint):
        make_ilql(make_trainer, tiny_gpt2, inputs={"rewards": rewards})
