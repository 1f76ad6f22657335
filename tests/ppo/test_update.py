"""Tests of a PPO update: the paper's loss, AdamW's step, clipping and early stopping."""

from __future__ import annotations

import copy
import math
from typing import Any

import pytest
import torch
from ppo_making import PROMPTS, Make, actions, hand_loss, make_ppo, move, roll, say, twin
from torch import Tensor
from transformers import PreTrainedModel

from rlcore.errors import ConfigError
from rlcore.types import Trajectories


def test_a_policy_of_which_only_the_value_function_trains_is_refused(
    make_trainer: Make, tiny_model: PreTrainedModel
) -> None:
    trainer = make_ppo(make_trainer, tiny_model)
    trainer.policy().model.requires_grad_(False)
    batch, _ = roll(trainer)
    with pytest.raises(ConfigError, match="only the value function trains: every parameter of the language model"):
        trainer.update(batch)


def test_an_update_is_a_step_of_adamw_on_the_loss_of_the_paper(make_trainer: Make, tiny_model: PreTrainedModel) -> None:
    plain = copy.deepcopy(tiny_model)
    optimizer = {"lr": 0.01, "eps": 0.1, "weight_decay": 0.0}  # a large eps: steps then depend on gradient sizes
    trainer = make_ppo(
        make_trainer, tiny_model, optimizer=optimizer, entropy_coef=0.3, value_coef=0.7, clip=0.05, clip_value=0.1,
        micro_batch_size=5, whiten_advantages=True,
    )  # fmt: skip
    batch, _ = roll(trainer)
    move(trainer.policy().module, 0.02)
    model, head = twin(trainer, plain)
    adam = torch.optim.AdamW(
        [*model.parameters(), *head.parameters()], lr=0.01, betas=(0.9, 0.95), eps=0.1, weight_decay=0
    )
    policy, value, entropy = hand_loss(model, head, batch, trainer.config)
    (policy + 0.7 * value - 0.3 * entropy).backward()
    norm = torch.nn.utils.clip_grad_norm_([*model.parameters(), *head.parameters()], 1.0)
    adam.step()

    metrics = trainer.update(batch)
    assert metrics["loss/policy"] == pytest.approx(policy.item(), abs=1e-4)
    assert metrics["loss/value"] == pytest.approx(value.item(), rel=1e-4)
    assert metrics["loss/entropy"] == pytest.approx(entropy.item(), rel=1e-4)
    assert metrics["loss/total"] == pytest.approx((policy + 0.7 * value - 0.3 * entropy).item(), rel=1e-4)
    assert metrics["grad/norm"] == pytest.approx(norm.item(), rel=1e-4)
    assert norm > 1
    assert 0 < metrics["policy/clip_fraction"] < 1
    assert 0 < metrics["value/clip_fraction"] < 1
    trained = trainer.policy().module
    for name, parameter in model.named_parameters():
        assert torch.allclose(trained.model.get_parameter(name), parameter, atol=2e-5), name
    for name, parameter in head.named_parameters():
        assert torch.allclose(trained.value.head.get_parameter(name), parameter, atol=2e-5), name


def test_the_fractions_reported_are_those_of_the_definitions(make_trainer: Make, tiny_gpt2: PreTrainedModel) -> None:
    plain = copy.deepcopy(tiny_gpt2)
    trainer = make_ppo(make_trainer, tiny_gpt2, clip_value=0.02)
    batch, _ = roll(trainer)
    move(trainer.policy().module, 0.02)
    model, head = twin(trainer, plain)
    ratios, clipped = [], []
    with torch.no_grad():
        for i in range(len(batch)):
            logprobs, hidden = say(model, batch, i)
            old = batch["old_logprobs"][i][batch.action_mask[i]]
            ratios += (logprobs.gather(1, actions(batch, i)[:, None])[:, 0] - old).exp().tolist()
            before, target = (batch[name][i][batch.action_mask[i]] for name in ("values", "returns"))
            for value, old, due in zip(head(hidden).tolist(), before.tolist(), target.tolist(), strict=True):
                bounded = min(max(value, old - 0.02), old + 0.02)
                clipped.append((bounded - due) ** 2 > (value - due) ** 2)
    metrics, count = trainer.update(batch), len(ratios)
    assert metrics["policy/ratio_mean"] == pytest.approx(sum(ratios) / count, rel=1e-4)
    # k3 with D = log pi_old - log pi: exp(-D) - 1 + D = rho - 1 - log rho
    assert metrics["policy/approx_kl"] == pytest.approx(sum(r - 1 - math.log(r) for r in ratios) / count, rel=1e-3)
    assert metrics["policy/clip_fraction"] == pytest.approx(sum(abs(r - 1) > 0.2 for r in ratios) / count, abs=0.02)
    assert metrics["value/clip_fraction"] == pytest.approx(sum(clipped) / count, abs=0.005)
    assert 0 < sum(clipped) < count


@pytest.mark.parametrize(("target", "epochs"), [(1e-6, 1), (1e6, 4), (None, 4)])
def test_a_policy_that_has_moved_too_far_ends_the_rounds_epochs(
    make_trainer: Make, tiny_gpt2: PreTrainedModel, target: float | None, epochs: int
) -> None:
    trainer = make_ppo(make_trainer, tiny_gpt2, epochs=4, batch_size=8, target_kl=target, optimizer={"lr": 0.01})
    assert next(trainer.steps())["policy/epochs"] == epochs
    assert trainer.updater.num_updates == 4 * epochs


def test_a_rounds_epochs_end_when_the_last_of_them_is_beyond_one_and_a_half_times_the_target(
    make_trainer: Make, tiny_gpt2: PreTrainedModel
) -> None:
    trainer = make_ppo(make_trainer, tiny_gpt2, epochs=4, target_kl=0.1)
    kls, loss = iter([0.14, 0.01, 0.16, 0.0]), trainer.loss

    def with_kl(part: Trajectories) -> tuple[Tensor, dict[str, Tensor]]:
        losses, metrics = loss(part)
        return losses, metrics | {"policy/approx_kl": torch.full_like(losses, next(kls))}

    trainer.loss = with_kl
    metrics = trainer.update(roll(trainer)[0])
    assert metrics["policy/epochs"] == 3
    assert metrics["policy/approx_kl"] == pytest.approx((0.14 + 0.01 + 0.16) / 3)


@pytest.mark.parametrize("bad", [math.inf, math.nan])
def test_a_minibatch_whose_kl_is_not_finite_changes_no_weights(
    make_trainer: Make, tiny_gpt2: PreTrainedModel, bad: float
) -> None:
    """The second of four minibatches has such a KL; the round's epochs end after the pass with it."""
    trainer = make_ppo(make_trainer, tiny_gpt2, epochs=3, batch_size=8, target_kl=0.1)
    loss, calls = trainer.loss, list[int]()

    def with_kl(part: Trajectories) -> tuple[Tensor, dict[str, Tensor]]:
        losses, metrics = loss(part)
        calls.append(len(part))
        return losses, metrics | {"policy/approx_kl": torch.full_like(losses, bad if len(calls) == 2 else 0.0)}

    trainer.loss = with_kl
    metrics = trainer.update(roll(trainer)[0])
    assert (metrics["policy/epochs"], metrics["policy/skipped"]) == (1, 1)
    assert trainer.updater.num_updates == 3


def test_the_entropy_metric_is_that_at_sampling_with_any_entropy_bonus(
    make_trainer: Make, tiny_gpt2: PreTrainedModel
) -> None:
    seen = []
    for options in ({}, {"entropy_coef": 0.1}, {"kl_coef": 0.5}, {"micro_batch_size": 3}):
        trainer = make_ppo(make_trainer, copy.deepcopy(tiny_gpt2), **options)
        batch, metrics = roll(trainer)
        expected = -float(batch["old_logprobs"][batch.action_mask].double().mean())
        metrics |= trainer.update(batch)
        assert metrics["policy/entropy"] == pytest.approx(expected, rel=1e-6)
        assert ("loss/entropy" in metrics) == ("entropy_coef" in options)
        seen.append(metrics["policy/entropy"])
    assert seen == pytest.approx([seen[0]] * len(seen), rel=1e-6)


def test_each_epoch_of_each_round_has_an_order_of_its_own(make_trainer: Make, tiny_gpt2: PreTrainedModel) -> None:
    trainer = make_ppo(make_trainer, tiny_gpt2, epochs=2, batch_size=8)
    batch, orders = roll(trainer)[0], list[int]()
    batch["returns"][:, 0] = torch.arange(32)  # never chosen, so it only numbers the rows
    accumulate = trainer.updater.accumulate

    def note(minibatch: Trajectories, *given: Any, **named: Any) -> Any:
        orders.extend(minibatch["returns"][:, 0].int().tolist())
        return accumulate(minibatch, *given, **named)

    trainer.updater.accumulate = note
    for number in (0, 1):
        trainer.num_rounds = number
        trainer.update(batch)
    epochs = [tuple(orders[start : start + 32]) for start in range(0, 128, 32)]
    assert all(sorted(epoch) == list(range(32)) for epoch in epochs)
    assert len(set(epochs)) == 4


def test_a_schedule_ends_with_the_last_update_of_the_run(make_trainer: Make, tiny_gpt2: PreTrainedModel) -> None:
    trainer = make_ppo(
        make_trainer, tiny_gpt2, rollouts=10, batch_size=4, epochs=2, run={"steps": 2},
        optimizer={"lr": 0.12, "scheduler": "linear"},
    )  # fmt: skip
    steps = trainer.steps()
    # two epochs of minibatches of 4, 4 and 2, twice: twelve updates, the last at a twelfth of the rate
    assert [next(steps)["lr"] for _ in range(2)] == pytest.approx([0.07, 0.01])


@pytest.mark.parametrize("shift", [3.0, math.nan])
def test_a_minibatch_with_a_ratio_out_of_bounds_is_skipped(
    make_trainer: Make, tiny_gpt2: PreTrainedModel, shift: float
) -> None:
    trainer = make_ppo(make_trainer, tiny_gpt2, batch_size=8, max_ratio=10.0, optimizer={"weight_decay": 0.1})
    batch, _ = roll(trainer)
    before = copy.deepcopy(trainer.policy().module.state_dict())
    metrics = trainer.update(batch.with_columns(old_logprobs=batch["old_logprobs"] - shift))  # exp(3) = 20
    assert metrics["policy/skipped"] == 4
    after = trainer.policy().module.state_dict()
    assert all(torch.equal(after[name], weight) for name, weight in before.items())
    assert all(p.grad is None or not p.grad.any() for p in trainer.policy().module.parameters())
    assert trainer.update(batch)["policy/skipped"] == 0
    assert not all(torch.equal(after[name], weight) for name, weight in before.items())


def test_a_response_without_a_score_is_no_part_of_the_loss(make_trainer: Make, tiny_gpt2: PreTrainedModel) -> None:
    def picky(outputs: list[str]) -> list[float | None]:
        return [None if len(output) > 3 else float(len(output)) for output in outputs]

    trainer = make_ppo(make_trainer, tiny_gpt2, inputs={"prompts": PROMPTS, "reward_fn": picky})
    batch, metrics = roll(trainer)
    assert 0 < metrics["reward/unscored"] == 32 - len(batch)
    assert metrics["reward/max"] == batch["scores"].max() <= 3
    assert metrics["response/length_mean"] > batch.num_actions.float().mean()  # of all responses
    counts = []
    trainer.loss, loss = lambda part: counts.append(len(part)) or loss(part), trainer.loss
    trainer.update(batch)
    assert sum(counts) == len(batch)


def test_a_schedule_falls_equally_in_each_round_even_if_epochs_end_early(
    make_trainer: Make, tiny_gpt2: PreTrainedModel
) -> None:
    """4 epochs of 4 minibatches are planned for each of 100 rounds; each round ends after its first epoch."""
    optimizer = {"lr": 0.01, "scheduler": "linear"}
    trainer = make_ppo(make_trainer, tiny_gpt2, epochs=4, batch_size=8, target_kl=1e-9, optimizer=optimizer)
    for number, metrics in zip(range(3), trainer.steps(), strict=False):
        assert metrics["policy/epochs"] == 1
        assert metrics["lr"] == pytest.approx(0.01 * (1 - (16 * number + 3) / 1600), rel=1e-6)
        trainer.run.progress.step += 1
