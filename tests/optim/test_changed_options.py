"""Tests that a resumed updater steps with the options it is built with, whatever those of the saved one were."""

from __future__ import annotations

import copy
from typing import Any

import attrs
import pytest
import torch
from torch import Tensor, nn

from rlcore.config import unstructure
from rlcore.errors import CheckpointError
from rlcore.optim.updater import Updater
from rlcore.ranks import Ranks
from rlcore.settings import OptimizerConfig

TOTAL, DONE = 12, 5
"""Optimizer steps of a run, and those made before it is resumed."""
BASES: dict[str, dict[str, Any]] = {
    "adamw": {"amsgrad": False}, "adam": {"amsgrad": False}, "nadam": {"momentum_decay": 0.004},
    "radam": {"decoupled_weight_decay": False}, "adamax": {},
    "sgd": {"momentum": 0.9, "dampening": 0.0, "nesterov": False},
    "rmsprop": {"alpha": 0.9, "momentum": 0.0, "centered": False}, "adagrad": {"lr_decay": 0.1},
    "adadelta": {"rho": 0.9}, "adafactor": {"clip_threshold": 1.0, "decay_rate": -0.8, "scale_parameter": False},
}  # fmt: skip
"""Options of each optimizer before a change."""
OTHERS: dict[str, Any] = {
    "lr": 0.05, "betas": (0.5, 0.6), "eps": 0.5, "weight_decay": 0.3, "nesterov": True, "momentum": 0.5,
    "dampening": 0.5, "alpha": 0.5, "lr_decay": 0.7, "rho": 0.5, "momentum_decay": 0.5, "decoupled_weight_decay": True,
    "clip_threshold": 0.01, "decay_rate": -0.1, "scale_parameter": True,
}  # fmt: skip
SCHEDULES: list[tuple[str, dict[str, Any], dict[str, Any]]] = [
    ("constant", {}, {"lr": 0.05}), ("constant", {}, {"warmup_steps": 8}), ("linear", {}, {"lr": 0.05}),
    ("linear", {}, {"warmup_steps": 3}), ("linear", {}, {"warmup_steps": 8}), ("linear", {}, {"scheduler": "cosine"}),
    ("cosine", {"num_cycles": 0.5}, {"scheduler_options": {"num_cycles": 1.0}}),
    ("polynomial", {"power": 1.0}, {"scheduler_options": {"power": 2.0, "lr_end": 0.01}}),
    ("inverse_sqrt", {"timescale": 10}, {"scheduler_options": {"timescale": 2}}),
    ("step", {"step_size": 2}, {"scheduler_options": {"step_size": 3}}),
    ("step", {"step_size": 2, "gamma": 0.5}, {"scheduler_options": {"step_size": 2, "gamma": 0.9}}),
    ("exponential", {"gamma": 0.9}, {"scheduler_options": {"gamma": 0.8}}),
    ("exponential", {"gamma": 0.9}, {"lr": 0.05}),
    ("warmup_stable_decay", {"num_decay_steps": 4}, {"scheduler_options": {"num_decay_steps": 9}}),
]  # fmt: skip


class Policy:
    """Minimal policy for an updater: a matrix and a vector."""

    version = 0

    def __init__(self) -> None:
        self.module = nn.Module()
        self.module.matrix = nn.Parameter(torch.linspace(-1, 1, 12).view(4, 3))
        self.module.vector = nn.Parameter(torch.tensor([0.5, -0.25, 2.0]))

    def use_forward(self, forward: Any, *, autocast: Any) -> None:
        """Do nothing."""

    def loss(self, step: int) -> Tensor:
        """Return a loss that changes from step to step."""
        matrix, vector = self.module.matrix, self.module.vector
        return (matrix - step / 3).square().sum() + (matrix.sum(0) * vector).sum() * (-1) ** step

    def weights(self) -> list[Tensor]:
        return [each.detach().clone() for each in self.module.parameters()]


def updater_of(policy: Policy, config: OptimizerConfig, **plan: Any) -> Updater:
    given: Any = policy
    return Updater(given, config, Ranks("no"), **{"total_updates": TOTAL, **plan})


def update(updater: Updater, policy: Policy, first: int, last: int) -> list[float]:
    rates = []
    for step in range(first, last):
        updater.backward(policy.loss(step))
        updater.step()
        rates.append(updater.lr)
    return rates


def saved(config: OptimizerConfig, **plan: Any) -> tuple[Policy, dict[str, Any]]:
    policy = Policy()
    updater = updater_of(policy, config, **plan)
    update(updater, policy, 0, DONE)
    return policy, copy.deepcopy(updater.state_dict())


def resumed(policy: Policy, state: dict[str, Any], config: OptimizerConfig, **plan: Any) -> tuple[Updater, Policy]:
    other = copy.deepcopy(policy)
    updater = updater_of(other, config, **plan)
    updater.load_state_dict(copy.deepcopy(state))
    return updater, other


def options_of(updater: Updater) -> list[dict[str, Any]]:
    return [
        {name: each for name, each in group.items() if name != "params"} for group in updater.optimizer.param_groups
    ]


def takes(name: str, option: str) -> bool:
    return option in options_of(updater_of(Policy(), OptimizerConfig(name=name, options=BASES[name])))[0]


CHANGES = [
    (name, option) for name, own in BASES.items() for option in ("lr", "betas", "eps", "weight_decay", *own)
    if option in own or takes(name, option)
]  # fmt: skip
REFUSED = {("adamw", "amsgrad"), ("adam", "amsgrad"), ("rmsprop", "momentum"), ("rmsprop", "centered")}
"""Options with which an optimizer continues from a moment that the saved one has not kept."""


@pytest.mark.parametrize(("name", "option"), CHANGES, ids=str)
def test_a_changed_option_of_an_optimizer_is_that_of_the_next_step_or_is_refused(name: str, option: str) -> None:
    before = OptimizerConfig(name=name, lr=0.1, weight_decay=0.1, options=BASES[name])
    own, value = option in before.options, OTHERS.get(option, True)
    after = attrs.evolve(before, **({"options": {**before.options, option: value}} if own else {option: value}))
    policy, state = saved(before)
    if (name, option) in REFUSED:
        with pytest.raises(CheckpointError, match=rf"'{name}' with these options continues from .*original .*options"):
            resumed(policy, state, after)
        return
    same, unchanged = resumed(policy, state, before)
    other, changed = resumed(policy, state, after)
    assert unstructure(options_of(other)) == unstructure(options_of(updater_of(Policy(), after)))
    rates = [update(each, on, DONE, DONE + 2) for each, on in ((same, unchanged), (other, changed))]
    assert rates[1] == [after.lr] * 2
    assert any(not torch.equal(one, two) for one, two in zip(unchanged.weights(), changed.weights(), strict=True))


@pytest.mark.parametrize(("scheduler", "options", "change"), SCHEDULES, ids=str)
def test_a_changed_schedule_has_the_rates_of_one_that_was_so_from_the_beginning(
    scheduler: str, options: dict[str, Any], change: dict[str, Any]
) -> None:
    before = OptimizerConfig(lr=0.1, scheduler=scheduler, scheduler_options=options)
    after = attrs.evolve(before, **({"scheduler_options": {}} if "scheduler" in change else {}), **change)
    policy, state = saved(before)
    other, changed = resumed(policy, state, after)
    whole = Policy()
    expected = update(updater_of(whole, after), whole, 0, TOTAL)[DONE:]
    assert update(other, changed, DONE, TOTAL) == pytest.approx(expected, rel=1e-12)


def test_a_longer_run_falls_from_its_first_step_as_the_longer_schedule_does() -> None:
    config = OptimizerConfig(lr=0.1, scheduler="linear")
    policy, state = saved(config, total_updates=DONE)
    other, longer = resumed(policy, state, config, total_updates=2 * DONE)
    assert update(other, longer, DONE, 2 * DONE) == pytest.approx([0.05, 0.04, 0.03, 0.02, 0.01])


def test_other_steps_of_a_round_keep_the_share_of_the_schedule_that_has_passed() -> None:
    config = OptimizerConfig(lr=0.1, scheduler="linear")
    policy, state = saved(config, total_updates=10, updates_per_step=1)
    other, changed = resumed(policy, state, config, total_updates=40, updates_per_step=4)
    assert update(other, changed, DONE, DONE + 2) == pytest.approx([0.05, 0.0475])


def test_without_a_change_the_saved_options_are_restored_whatever_the_optimizer_made_of_them() -> None:
    config = OptimizerConfig(lr=0.1, betas=(0.5, 0.6))
    policy, state = saved(config)
    for group in state["optimizer"]["param_groups"]:
        group |= {"learned": 3.0, "eps": 0.25}
    assert options_of(resumed(policy, state, config)[0])[0].items() >= {"learned": 3.0, "eps": 0.25, "lr": 0.1}.items()
    changed = options_of(resumed(policy, state, attrs.evolve(config, weight_decay=0.3))[0])[0]
    assert changed.items() >= {"learned": 3.0, "eps": 0.25, "weight_decay": 0.3, "lr": 0.1}.items()


def test_the_moments_of_another_optimizer_are_used_only_if_they_fit() -> None:
    policy, state = saved(OptimizerConfig(name="adamw", lr=0.1))
    for name in ("adam", "radam", "sgd"):
        other, changed = resumed(policy, state, OptimizerConfig(name=name, lr=0.1))
        update(other, changed, DONE, TOTAL)
    for name, missing in (("nadam", "mu_product"), ("adagrad", "sum"), ("adafactor", "exp_avg_sq_col")):
        with pytest.raises(CheckpointError, match=rf"'{name}' with these options continues from .*{missing}"):
            resumed(policy, state, OptimizerConfig(name=name, lr=0.1))


def test_an_initial_value_cannot_change_once_the_optimizer_has_begun() -> None:
    before = OptimizerConfig(name="adagrad", lr=0.1, options={"initial_accumulator_value": 0.5})
    policy, state = saved(before)
    with pytest.raises(CheckpointError, match=r"initial values of .*sum.*start a new run from the checkpoint's model"):
        resumed(policy, state, attrs.evolve(before, options={"initial_accumulator_value": 1.0}))


@pytest.mark.parametrize("frozen", ["matrix", "vector"])
def test_a_run_in_which_other_parameters_are_frozen_is_refused_with_the_counts(frozen: str) -> None:
    config = OptimizerConfig(lr=0.1)
    policy, state = saved(config)
    getattr(policy.module, frozen).requires_grad_(False)
    for after in (config, attrs.evolve(config, lr=0.2)):
        with pytest.raises(CheckpointError, match=r"trains 2 parameters, and this run 1, .*unfrozen_layers"):
            resumed(policy, state, after)
