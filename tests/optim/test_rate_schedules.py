"""Tests of learning-rate schedules: rates worked by hand, warm-up, and runs with few steps or an unknown number."""

from __future__ import annotations

from typing import Any

import pytest
from updater_cases import SCHEDULES, TOTAL, Policy, Weights, loss_of, update, updater_of

from rlcore.errors import ConfigError
from rlcore.optim.updater import Updater
from rlcore.ranks import Ranks
from rlcore.settings import OptimizerConfig


@pytest.mark.parametrize(("name", "options", "warmup", "expected"), SCHEDULES, ids=str)
def test_learning_rates_equal_values_worked_by_hand(
    name: str, options: dict[str, Any], warmup: int, expected: dict[int, float]
) -> None:
    weights = Weights()
    config = OptimizerConfig(lr=0.1, scheduler=name, scheduler_options=options, warmup_steps=warmup)
    rates = update(updater_of(weights, config), weights, 0, TOTAL + 2)
    assert {step: rates[step] / 0.1 for step in expected} == pytest.approx(expected, abs=1e-9)


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
