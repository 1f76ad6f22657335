"""Tests of the updater: an update equals a plain training loop, and resumes exactly from a saved state."""

from __future__ import annotations

import copy
import importlib.util
import math
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import Adafactor

from rlcore.checkpoints.state import load_state, save_state
from rlcore.errors import ConfigError, RanksError
from rlcore.optim.updater import Updater
from rlcore.ranks import Ranks
from rlcore.settings import OptimizerConfig

TOTAL = 12
MATRIX = torch.linspace(-1, 1, 12).view(4, 3)
VECTOR = torch.tensor([0.5, -0.25, 2.0])
Loop = Callable[[list[dict[str, Any]]], torch.optim.Optimizer]
OPTIMIZERS: list[tuple[OptimizerConfig, Loop]] = [
    (
        OptimizerConfig(lr=0.1),
        lambda groups: torch.optim.AdamW(groups, lr=0.1, betas=(0.9, 0.95), eps=1e-8, weight_decay=1e-6),
    ),
    (
        OptimizerConfig(lr=0.1, betas=(0.5, 0.7), eps=0.1, weight_decay=0.2, options={"amsgrad": True}),
        lambda groups: torch.optim.AdamW(groups, 0.1, (0.5, 0.7), 0.1, 0.2, amsgrad=True),
    ),
    (
        OptimizerConfig(name="adam", lr=0.1, betas=(0.5, 0.7), weight_decay=0.2),
        lambda groups: torch.optim.Adam(groups, 0.1, (0.5, 0.7), weight_decay=0.2),
    ),
    (OptimizerConfig(name="nadam", lr=0.1), lambda groups: torch.optim.NAdam(groups, 0.1)),
    (
        OptimizerConfig(name="nadam", lr=0.1, weight_decay=0.2, options={"decoupled_weight_decay": True}),
        lambda groups: torch.optim.NAdam(groups, 0.1, weight_decay=0.2, decoupled_weight_decay=True),
    ),
    (OptimizerConfig(name="radam", lr=0.1), lambda groups: torch.optim.RAdam(groups, 0.1)),
    (
        OptimizerConfig(name="adamax", lr=0.1, eps=0.1),
        lambda groups: torch.optim.Adamax(groups, 0.1, eps=0.1),
    ),
    (OptimizerConfig(name="sgd", lr=0.1), lambda groups: torch.optim.SGD(groups, 0.1)),
    (
        OptimizerConfig(name="sgd", lr=0.1, weight_decay=0.2, options={"momentum": 0.9, "nesterov": True}),
        lambda groups: torch.optim.SGD(groups, 0.1, 0.9, weight_decay=0.2, nesterov=True),
    ),
    (
        OptimizerConfig(name="rmsprop", lr=0.1, options={"alpha": 0.5, "momentum": 0.5, "centered": True}),
        lambda groups: torch.optim.RMSprop(groups, 0.1, 0.5, momentum=0.5, centered=True),
    ),
    (
        OptimizerConfig(name="adagrad", lr=0.1, options={"lr_decay": 0.5, "initial_accumulator_value": 0.1}),
        lambda groups: torch.optim.Adagrad(groups, 0.1, 0.5, initial_accumulator_value=0.1),
    ),
    (
        OptimizerConfig(name="adadelta", lr=1.0, options={"rho": 0.5}),
        lambda groups: torch.optim.Adadelta(groups, 1.0, 0.5),
    ),
    (
        OptimizerConfig(name="adafactor", lr=0.1),
        lambda groups: Adafactor(groups, 0.1, scale_parameter=False, relative_step=False),
    ),
    (
        OptimizerConfig(name="adafactor", lr=0.1, weight_decay=0.2, options={"beta1": 0.5, "scale_parameter": True}),
        lambda groups: Adafactor(groups, 0.1, weight_decay=0.2, beta1=0.5, relative_step=False),
    ),
]


def named(pair: tuple[OptimizerConfig, Any]) -> str:
    return "-".join([pair[0].name, *pair[0].options])


class Weights(nn.Module):
    """Trainable matrix and vector."""

    def __init__(self, matrix: Tensor = MATRIX, vector: Tensor = VECTOR, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.matrix, self.vector = nn.Parameter(matrix.to(dtype, copy=True)), nn.Parameter(vector.to(dtype, copy=True))


class Policy:
    """Minimal policy for an updater."""

    version = 0

    def __init__(self, weights: nn.Module) -> None:
        self.module = weights

    def use_forward(self, forward: Any, *, autocast: Any) -> None:
        """Do nothing."""


def loss_of(weights: Weights, step: int) -> Tensor:
    """Return a loss that changes from step to step."""
    return (weights.matrix - step / 3).square().sum() + (weights.matrix.sum(0) * weights.vector).sum() * (-1) ** step


def updater_of(weights: Weights, config: OptimizerConfig, total: int | None = TOTAL) -> Updater:
    policy: Any = Policy(weights)
    return Updater(policy, config, Ranks("no"), total_updates=total)


def update(updater: Updater, weights: Weights, first: int, last: int) -> list[float]:
    rates = []
    for step in range(first, last):
        updater.backward(loss_of(weights, step))
        updater.step()
        rates.append(updater.lr)
    return rates


@pytest.mark.parametrize("pair", OPTIMIZERS, ids=named)
def test_updates_equal_a_plain_loop_without_weight_decay_on_vectors(pair: tuple[OptimizerConfig, Loop]) -> None:
    config, build = pair
    ours, plain = Weights(), Weights()
    update(updater_of(ours, config), ours, 0, TOTAL)
    optimizer = build([{"params": [plain.matrix]}, {"params": [plain.vector], "weight_decay": 0.0}])
    for step in range(TOTAL):
        optimizer.zero_grad()
        loss_of(plain, step).backward()
        torch.nn.utils.clip_grad_norm_(plain.parameters(), 1.0)
        optimizer.step()
    torch.testing.assert_close(ours.matrix, plain.matrix, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(ours.vector, plain.vector, rtol=1e-5, atol=1e-6)
    assert (ours.matrix - MATRIX).abs().max().item() > 0.01


# Rates in units of lr, computed by hand: 12 steps, the first 4 of them warm-up. The last two are after the end.
HALF = 0.5
RISE = [0, 0.25, 0.5, 0.75]
SCHEDULES: list[tuple[str, dict[str, Any], int, dict[int, float]]] = [
    ("constant", {}, 4, dict(enumerate([*RISE, 1, 1])) | {13: 1}),
    ("constant", {}, 0, {0: 1, 13: 1}),
    ("linear", {}, 4, dict(enumerate([*RISE, 1, 7 / 8, 6 / 8])) | {8: HALF, 11: 1 / 8, 12: 0, 13: 0}),
    ("linear", {}, 0, {0: 1, 3: 0.75, 6: HALF, 12: 0}),
    ("cosine", {}, 4, dict(enumerate([*RISE, 1])) | {6: (1 + 2**-0.5) / 2, 8: HALF, 10: (1 - 2**-0.5) / 2, 12: 0}),
    ("cosine", {"num_cycles": 1.0}, 4, {4: 1, 6: HALF, 8: 0, 10: HALF, 12: 1}),
    ("cosine_with_restarts", {"num_cycles": 2}, 4, {4: 1, 6: HALF, 7: (1 - 2**-0.5) / 2, 8: 1, 10: HALF, 12: 0}),
    ("cosine_with_min_lr", {"min_lr_rate": 0.2}, 4, {2: HALF, 4: 1, 8: 0.6, 12: 0.2}),
    ("cosine_with_min_lr", {"min_lr": 0.02}, 0, {0: 1, 6: 0.6, 12: 0.2}),
    ("polynomial", {"power": 2.0}, 4, dict(enumerate([*RISE, 1])) | {6: 9 / 16, 8: 1 / 4, 12: 0, 13: 0}),
    ("polynomial", {"lr_end": 0.05}, 4, {2: HALF, 4: 1, 8: 0.75, 12: 0.5, 13: 0.5}),
    ("inverse_sqrt", {}, 4, dict(enumerate([*RISE, 1])) | {9: 2 / 3, 12: (1 / 3) ** 0.5}),
    ("inverse_sqrt", {"timescale": 1}, 0, {0: 1, 3: HALF, 8: 1 / 3}),
    ("warmup_stable_decay", {"num_decay_steps": 4}, 4, {2: HALF, 4: 1, 7: 1, 8: 1, 10: HALF, 12: 0, 13: 0}),
    (
        "warmup_stable_decay",
        {"num_decay_steps": 4, "num_stable_steps": 1, "decay_type": "linear", "min_lr_ratio": 0.2},
        2, {0: 0.2, 1: 0.6, 2: 1, 3: 1, 4: 0.8, 5: 0.6, 7: 0.2, 12: 0.2},
    ),
    ("step", {"step_size": 5, "gamma": 0.5}, 0, {0: 1, 4: 1, 5: 0.5, 9: 0.5, 10: 0.25}),
    ("exponential", {"gamma": 0.5}, 0, {0: 1, 1: 0.5, 4: 1 / 16}),
]  # fmt: skip


@pytest.mark.parametrize(("name", "options", "warmup", "expected"), SCHEDULES, ids=str)
def test_learning_rates_equal_values_worked_by_hand(
    name: str, options: dict[str, Any], warmup: int, expected: dict[int, float]
) -> None:
    weights = Weights()
    config = OptimizerConfig(lr=0.1, scheduler=name, scheduler_options=options, warmup_steps=warmup)
    rates = update(updater_of(weights, config), weights, 0, TOTAL + 2)
    assert {step: rates[step] / 0.1 for step in expected} == pytest.approx(expected, abs=1e-9)


RESUMED = [
    *(config for config, _ in OPTIMIZERS),
    *(
        OptimizerConfig(
            name="sgd", lr=0.1, options={"momentum": 0.9}, scheduler=name, scheduler_options=options, warmup_steps=warm
        )
        for name, options, warm, _ in SCHEDULES
    ),
    OptimizerConfig(name="adafactor", lr=0.1, options={"beta1": 0.9}, scheduler="cosine", warmup_steps=4),
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("config", RESUMED, ids=lambda config: f"{config.name}-{config.scheduler}")
def test_a_restored_optimizer_continues_exactly(config: OptimizerConfig, dtype: torch.dtype, tmp_path: Path) -> None:
    whole = Weights(dtype=dtype)
    updater = updater_of(whole, config)
    update(updater, whole, 0, 5)
    save_state(tmp_path / "state", updater.state_dict())
    parted = Weights(whole.matrix.detach(), whole.vector.detach(), dtype)
    rates = update(updater, whole, 5, TOTAL)
    again = updater_of(parted, config)
    again.load_state_dict(load_state(tmp_path / "state"))
    assert update(again, parted, 5, TOTAL) == rates
    assert torch.equal(parted.matrix, whole.matrix)
    assert torch.equal(parted.vector, whole.vector)
    assert (again.num_updates, again.num_skipped) == (TOTAL, 0)


def test_the_counts_of_steps_made_and_skipped_are_restored() -> None:
    weights = Weights()
    updater = updater_of(weights, OptimizerConfig())
    update(updater, weights, 0, 3)
    updater.skip()
    updater.skip()
    again = updater_of(Weights(), OptimizerConfig())
    again.load_state_dict(updater.state_dict())
    assert (again.num_updates, again.num_skipped) == (3, 2)


@pytest.mark.parametrize("name", ["linear", "cosine", "cosine_with_restarts", "polynomial"])
def test_a_schedule_with_an_end_needs_the_number_of_steps(name: str) -> None:
    config = OptimizerConfig(scheduler=name)
    with pytest.raises(ConfigError, match=rf"trainer.optimizer.scheduler = '{name}': the number of steps is unknown"):
        updater_of(Weights(), config, total=None)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("constant", {}), ("inverse_sqrt", {}), ("step", {"step_size": 2}), ("exponential", {"gamma": 0.9}),
        ("warmup_stable_decay", {"num_decay_steps": 2, "num_stable_steps": 2}),
    ],
)  # fmt: skip
def test_schedules_without_an_end_work_with_a_time_budget(name: str, options: dict[str, Any]) -> None:
    weights = Weights()
    updater = updater_of(weights, OptimizerConfig(scheduler=name, scheduler_options=options), total=None)
    assert all(rate > 0 for rate in update(updater, weights, 0, 4))


@pytest.mark.parametrize("total", [None, 3])
def test_a_decay_longer_than_the_run_is_refused(total: int | None) -> None:
    config = OptimizerConfig(
        scheduler="warmup_stable_decay", scheduler_options={"num_decay_steps": 3}, warmup_steps=1
    )  # fmt: skip
    said = "set run.steps or num_stable_steps" if total is None else "must fit into the 3 optimizer steps"
    with pytest.raises(ConfigError, match=said):
        updater_of(Weights(), config, total=total)


def test_skipped_steps_change_nothing_and_are_counted_across_a_resume() -> None:
    weights = Weights()
    updater = updater_of(weights, OptimizerConfig(lr=0.1, weight_decay=0.5))
    for _ in range(2):
        updater.backward(loss_of(weights, 0))
        updater.skip()
    assert torch.equal(weights.matrix, MATRIX)
    assert weights.matrix.grad is None or not weights.matrix.grad.any()
    again = updater_of(Weights(), OptimizerConfig(lr=0.1, weight_decay=0.5))
    again.load_state_dict(updater.state_dict())
    assert (again.num_updates, again.num_skipped) == (0, 2)


@pytest.mark.parametrize("max_grad_norm", [1.0, 0.0])
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, 1e30])
def test_a_gradient_whose_norm_is_not_finite_makes_no_step_and_is_counted(
    bad: float, max_grad_norm: float, capsys: pytest.CaptureFixture[str]
) -> None:
    """The square of 1e30 exceeds float32: clipped to a norm of inf, every other gradient would be 0."""
    weights = Weights()
    updater = updater_of(weights, OptimizerConfig(lr=0.1, weight_decay=0.5, max_grad_norm=max_grad_norm))
    update(updater, weights, 0, 1)
    before = copy.deepcopy(weights.state_dict()), copy.deepcopy(updater.optimizer.state_dict())
    for step in (1, 2):
        updater.backward(loss_of(weights, step))
        assert weights.matrix.grad is not None
        weights.matrix.grad[1, 2] = bad
        updater.step()
    assert torch.equal(weights.matrix, before[0]["matrix"])
    assert torch.equal(weights.vector, before[0]["vector"])
    assert all(torch.equal(one, other) for one, other in zip(
        (x for each in updater.optimizer.state_dict()["state"].values() for x in each.values()),
        (x for each in before[1]["state"].values() for x in each.values()), strict=True,
    ))  # fmt: skip
    assert (updater.num_updates, updater.num_skipped) == (1, 2)
    assert capsys.readouterr().err.count("an optimizer step is skipped: the gradient is not finite") == 1
    updater.backward(loss_of(weights, 1))
    updater.step()
    assert (updater.num_updates, updater.num_skipped) == (2, 2)
    assert not torch.equal(weights.matrix, before[0]["matrix"])


def test_the_learning_rate_is_that_of_the_schedule_also_where_no_step_is_made() -> None:
    weights, done = Weights(), [0]
    policy: Any = Policy(weights)
    config = OptimizerConfig(lr=0.1, scheduler="linear")
    updater = Updater(policy, config, Ranks("no"), total_updates=4, steps_done=lambda: done[0])
    rates = []
    for made in (False, True, False, True):
        updater.backward(loss_of(weights, 0))
        if made:
            updater.step()
        else:
            updater.skip()
        rates.append(updater.lr)
        done[0] += 1
    assert rates == pytest.approx([0.1, 0.075, 0.05, 0.025])


@pytest.mark.parametrize("name", ["linear", "cosine", "polynomial", "cosine_with_restarts", "constant"])
@pytest.mark.parametrize("total", [0, 2, 4])
def test_a_run_no_longer_than_its_warm_up_only_warms_up(name: str, total: int) -> None:
    weights = Weights()
    config = OptimizerConfig(lr=0.1, scheduler=name, warmup_steps=4)
    assert update(updater_of(weights, config, total), weights, 0, 4) == pytest.approx([0, 0.025, 0.05, 0.075])


def test_a_run_of_no_steps_builds_every_schedule() -> None:
    for name, options, warmup, _ in SCHEDULES:
        for steps in {0, warmup}:
            config = OptimizerConfig(lr=0.1, scheduler=name, scheduler_options=options, warmup_steps=steps)
            updater_of(Weights(), config, total=0)


def test_every_update_raises_the_version_of_the_policy() -> None:
    policy: Any = Policy(Weights())
    updater = Updater(policy, OptimizerConfig(lr=0.1), Ranks("no"), total_updates=TOTAL)
    for step in range(2):
        updater.backward(loss_of(policy.module, step))
        updater.step()
    updater.skip()
    assert policy.version == 2


def test_a_gradient_is_scaled_to_the_bound() -> None:
    weights = Weights()
    updater = updater_of(weights, OptimizerConfig(name="sgd", lr=1.0, max_grad_norm=0.5))
    updater.backward(loss_of(weights, 0))
    gradients = torch.cat([weights.matrix.grad.flatten(), weights.vector.grad])  # type: ignore[union-attr]
    norm = float(gradients.norm())
    assert float(updater.step()) == pytest.approx(norm)  # type: ignore[arg-type]
    moved = torch.cat([(weights.matrix - MATRIX).flatten(), weights.vector - VECTOR])
    torch.testing.assert_close(moved.detach(), -gradients * 0.5 / norm)


def test_the_8_bit_optimizer_needs_bitsandbytes(monkeypatch: pytest.MonkeyPatch) -> None:
    missing: ModuleType | None = None
    monkeypatch.setitem(sys.modules, "bitsandbytes.optim", missing)
    with pytest.raises(ConfigError, match=r"'adamw_8bit' .* needs bitsandbytes, which is not installed: pip install"):
        updater_of(Weights(), OptimizerConfig(name="adamw_8bit"))


@pytest.mark.skipif(importlib.util.find_spec("bitsandbytes") is None, reason="bitsandbytes is not installed")
def test_the_8_bit_optimizer_is_close_to_adamw() -> None:
    large = torch.linspace(-1, 1, 80 * 64).view(80, 64)
    ours, plain = Weights(large, torch.ones(64)), Weights(large, torch.ones(64))
    updater = updater_of(ours, OptimizerConfig(name="adamw_8bit", lr=0.01))
    update(updater, ours, 0, 6)
    update(updater_of(plain, OptimizerConfig(lr=0.01)), plain, 0, 6)
    assert updater.optimizer.state[ours.matrix]["state1"].dtype == torch.uint8
    assert float((ours.matrix - plain.matrix).abs().mean()) < 0.1 * float((plain.matrix - large).abs().mean())


def test_a_parameter_that_ranks_cannot_exchange_is_an_error_with_the_reason(
    make_trainer: Callable[..., Any], tiny_gpt2: nn.Module
) -> None:
    updater = make_trainer("sft", tiny_gpt2, inputs={"samples": ["ab"]}).updater
    with pytest.raises(RanksError, match="such as an expert to which no token was routed"), updater.exchanging(True):
        raise RuntimeError("Expected to have finished reduction in the prior iteration before starting a new one.")
    with pytest.raises(RuntimeError, match="other"), updater.exchanging(True):
        raise RuntimeError("other")
