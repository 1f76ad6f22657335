"""Tests of optimizer steps that are skipped: they change nothing, and are counted across a resume."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from updater_cases import MATRIX, Weights, loss_of, update, updater_of

from rlcore.settings import OptimizerConfig


def test_the_counts_of_steps_made_and_skipped_are_restored() -> None:
    weights = Weights()
    updater = updater_of(weights, OptimizerConfig())
    update(updater, weights, 0, 3)
    updater.skip()
    updater.skip()
    again = updater_of(Weights(), OptimizerConfig())
    again.load_state_dict(updater.state_dict())
    assert (again.num_updates, again.num_skipped) == (3, 2)


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
