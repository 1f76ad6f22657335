from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from rlcore_ppo.loss import policy_loss, value_clipped, value_loss


def row(*numbers: float) -> Tensor:
    return torch.tensor([numbers])


def test_policy_loss_at_hand_worked_ratios() -> None:
    ratios = row(1.0, 1.1, 1.5, 0.5, 1.5, 0.5)
    advantages = row(2.0, 2.0, 2.0, 2.0, -2.0, -2.0)
    loss = policy_loss(ratios.log() - 1.0, row(*[-1.0] * 6), advantages, clip=0.2)
    # -A rho; -2 * 1.1; clipped to 1.2; below 1 the smaller gain counts; -A * 1.5; clipped to .8
    assert loss[0].tolist() == pytest.approx([-2.0, -2.2, -2.4, -1.0, 3.0, 1.6], abs=1e-6)


@pytest.mark.parametrize(
    ("ratio", "advantage", "clipped"),
    [
        (1.3, 1.0, True),
        (0.7, -1.0, True),
        (1.3, -1.0, False),
        (0.7, 1.0, False),
        (1.1, 1.0, False),
        (0.9, -1.0, False),
    ],
)
def test_the_policy_loss_has_no_gradient_where_the_ratio_is_clipped(
    ratio: float, advantage: float, clipped: bool
) -> None:
    logprobs = row(math.log(ratio)).requires_grad_()
    policy_loss(logprobs, row(0.0), row(advantage), clip=0.2).sum().backward()
    assert logprobs.grad is not None
    # d(-A rho) / d log pi = -A rho
    assert logprobs.grad.item() == pytest.approx(0.0 if clipped else -advantage * ratio, abs=1e-6)


def test_at_ratio_one_the_gradient_is_that_of_the_policy_gradient() -> None:
    logprobs = row(-0.3, -2.0).requires_grad_()
    policy_loss(logprobs, logprobs.detach(), row(1.5, -0.5), clip=0.2).sum().backward()
    assert logprobs.grad is not None
    assert logprobs.grad[0].tolist() == pytest.approx([-1.5, 0.5])


def test_value_loss_at_hand_worked_values() -> None:
    old, returns = row(1.0, 1.0, 1.0, 1.0), row(2.0, 2.0, 1.1, 2.0)
    values = row(1.1, 1.5, 1.5, 3.5)
    # inside: .9^2; clipped to 1.2: .8^2 > .5^2; the unclipped error .4^2 > .1^2; 1.5^2 > .8^2
    expected = [0.81 / 2, 0.64 / 2, 0.16 / 2, 2.25 / 2]
    assert value_loss(values, old, returns, clip=0.2)[0].tolist() == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(
    ("value", "target", "clipped"),
    [(1.5, 2.0, True), (0.5, 0.0, True), (1.5, 0.5, False), (0.5, 2.0, False), (1.1, 2.0, False)],
)
def test_a_value_that_has_moved_far_enough_has_zero_gradient(value: float, target: float, clipped: bool) -> None:
    values = row(value).requires_grad_()
    value_loss(values, row(1.0), row(target), clip=0.2).sum().backward()
    assert values.grad is not None
    assert values.grad.item() == pytest.approx(0.0 if clipped else value - target, abs=1e-6)
    assert value_clipped(values, row(1.0), row(target), clip=0.2).item() is clipped
    assert not value_clipped(values, row(1.0), row(target), clip=0).item()


def test_a_value_clip_of_zero_does_not_clip_values() -> None:
    values = row(9.0).requires_grad_()
    loss = value_loss(values, row(0.0), row(10.0), clip=0)
    loss.sum().backward()
    assert values.grad is not None
    assert (loss.item(), values.grad.item()) == (0.5, -1.0)
