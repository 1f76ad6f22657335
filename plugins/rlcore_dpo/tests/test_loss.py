"""Every loss against hand-worked values, an independent formula in float64, and finite differences."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from rlcore_dpo import loss

C, R = (0.7, -1.2, 3.0), (0.2, 0.4, -2.5)
"""Log-ratios of chosen and rejected answers of three pairs."""


def sigma(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def odds(mean: float) -> float:
    return math.exp(mean) / (1 - math.exp(mean))


LOSSES: dict[str, tuple[Callable[[Tensor, Tensor], Tensor], Callable[[float, float], float]]] = {
    "sigmoid": (
        lambda c, r: loss.sigmoid_loss(c, r, beta=0.3),
        lambda c, r: -math.log(sigma(0.3 * (c - r))),
    ),
    "cdpo": (
        lambda c, r: loss.sigmoid_loss(c, r, beta=0.3, label_smoothing=0.2),
        lambda c, r: -0.8 * math.log(sigma(0.3 * (c - r))) - 0.2 * math.log(sigma(-0.3 * (c - r))),
    ),
    "robust": (
        lambda c, r: loss.robust_loss(c, r, beta=0.3, label_smoothing=0.2),
        lambda c, r: (-0.8 * math.log(sigma(0.3 * (c - r))) + 0.2 * math.log(sigma(-0.3 * (c - r)))) / 0.6,
    ),
    "hinge": (lambda c, r: loss.hinge_loss(c, r, beta=0.3), lambda c, r: max(0.0, 1 - 0.3 * (c - r))),
    "ipo": (lambda c, r: loss.ipo_loss(c, r, beta=0.25), lambda c, r: (c - r - 2) ** 2),
    "exo": (
        lambda c, r: loss.exo_loss(c, r, beta=0.3, label_smoothing=0.1),
        lambda c, r: sigma(0.3 * (c - r)) * math.log(sigma(0.3 * (c - r)) / 0.9)
        + sigma(-0.3 * (c - r)) * math.log(sigma(-0.3 * (c - r)) / 0.1),
    ),
    "apo_zero": (
        lambda c, r: loss.apo_zero_loss(c, r, beta=0.3), lambda c, r: 1 - sigma(0.3 * c) + sigma(0.3 * r),
    ),
    "apo_down": (
        lambda c, r: loss.apo_down_loss(c, r, beta=0.3), lambda c, r: sigma(0.3 * c) + 1 - sigma(0.3 * (c - r)),
    ),
    "nca": (
        lambda c, r: loss.nca_loss(c, r, beta=0.3),
        lambda c, r: -math.log(sigma(0.3 * c)) - 0.5 * math.log(sigma(-0.3 * c)) - 0.5 * math.log(sigma(-0.3 * r)),
    ),
    "bco": (
        lambda c, r: loss.bco_loss(c, r, beta=0.3), lambda c, r: -math.log(sigma(0.3 * c) * (1 - sigma(0.3 * r))),
    ),
    "sppo": (
        lambda c, r: loss.sppo_loss(c, r, beta=0.25), lambda c, r: (c - 2) ** 2 + (r + 2) ** 2,
    ),
    "discopop": (
        lambda c, r: loss.discopop_loss(c, r, beta=0.3),
        lambda c, r: math.exp(-0.3 * (c - r)) * sigma(6 * (c - r))
        - math.log(sigma(0.3 * (c - r))) * (1 - sigma(6 * (c - r))),
    ),
    "simpo": (
        lambda c, r: loss.simpo_loss(c, r, beta=2.0, gamma=0.5), lambda c, r: -math.log(sigma(2 * (c - r) - 0.5)),
    ),
    "orpo": (  # of mean log-probs, which are negative
        lambda c, r: loss.orpo_loss(c - 4, r - 4, beta=0.1),
        lambda c, r: -0.1 * math.log(sigma(math.log(odds(c - 4) / odds(r - 4)))),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", LOSSES)
def test_the_value_is_that_of_the_formula_and_the_gradient_its_slope(name: str) -> None:
    function, formula = LOSSES[name]
    chosen, rejected = (torch.tensor(x, dtype=torch.float64, requires_grad=True) for x in (C, R))
    found = function(chosen, rejected)
    assert found.tolist() == pytest.approx([formula(c, r) for c, r in zip(C, R, strict=True)], abs=1e-12)
    found.sum().backward()
    assert chosen.grad is not None
    assert rejected.grad is not None
    for i, (c, r) in enumerate(zip(C, R, strict=True)):
        slopes = [(formula(c + d, r + e) - formula(c - d, r - e)) / 2e-6 for d, e in ((1e-6, 0), (0, 1e-6))]
        assert [chosen.grad[i].item(), rejected.grad[i].item()] == pytest.approx(slopes, abs=1e-8)


def test_every_loss_equals_values_worked_by_hand() -> None:
    one, zero = torch.tensor([1.0]), torch.tensor([0.0])
    assert loss.sigmoid_loss(zero, zero, beta=0.1).item() == pytest.approx(math.log(2))
    assert loss.hinge_loss(one, zero, beta=0.1).item() == pytest.approx(0.9)
    assert loss.hinge_loss(20 * one, zero, beta=0.1).item() == 0
    assert loss.ipo_loss(one, zero, beta=0.1).item() == pytest.approx(16)
    assert loss.ipo_loss(5 * one, zero, beta=0.1).item() == 0
    assert loss.apo_zero_loss(zero, zero, beta=0.1).item() == 1
    assert loss.apo_down_loss(zero, zero, beta=0.1).item() == 1
    assert loss.nca_loss(zero, zero, beta=0.1).item() == pytest.approx(2 * math.log(2))
    assert loss.bco_loss(10 * one, zero, beta=0.1).item() == pytest.approx(0.313262 + 0.693147, abs=1e-5)
    assert loss.sppo_loss(5 * one, 0 * one, beta=0.1).item() == pytest.approx(25)
    # x = .1, g = sigmoid(2) = .880797: .119203 * .644397 + .880797 * exp(-.1)
    assert loss.discopop_loss(one, zero, beta=0.1).item() == pytest.approx(0.0768141 + 0.7969785, abs=1e-5)
    # e = 1/2 in both distributions would be 0; here KL((.5, .5), (.9, .1)) = .5 log(.25 / .09)
    assert loss.exo_loss(zero, zero, beta=0.1, label_smoothing=0.1).item() == pytest.approx(0.5 * math.log(25 / 9))


def test_label_smoothing_is_not_ignored_by_sigmoid() -> None:
    chosen, rejected = torch.tensor([3.0]), torch.tensor([1.0])
    plain, smoothed = (loss.sigmoid_loss(chosen, rejected, beta=1.0, label_smoothing=e) for e in (0.0, 0.25))
    assert (smoothed - plain).item() == pytest.approx(0.25 * 2)  # -e log sigmoid(-x) + e log sigmoid(x) = e x


def test_robust_is_unbiased_if_labels_are_flipped() -> None:
    c, r = torch.tensor(C, dtype=torch.float64), torch.tensor(R, dtype=torch.float64)
    kept, flipped = (loss.robust_loss(*pair, beta=0.3, label_smoothing=0.2) for pair in ((c, r), (r, c)))
    assert torch.allclose(0.8 * kept + 0.2 * flipped, loss.sigmoid_loss(c, r, beta=0.3))


def test_log_odds_are_stable_near_certainty_and_near_zero() -> None:
    values = torch.tensor([-1e-6, -1e-12, -0.5, -700.0], dtype=torch.float64)
    expected = [math.log(math.exp(x) / -math.expm1(x)) if x > -600 else x for x in values.tolist()]
    assert loss.log_odds(values).tolist() == pytest.approx(expected, rel=1e-9)
    certain = torch.zeros(2, requires_grad=True)
    loss.log_odds(certain).sum().backward()
    assert certain.grad is not None
    assert certain.grad.isfinite().all()
    assert loss.log_odds(certain).isfinite().all()


def test_losses_stay_finite_for_extreme_log_ratios() -> None:
    far = torch.tensor([1e4, -1e4])
    for name in LOSSES:
        if name != "orpo":
            value = LOSSES[name][0](far, -far)
            assert value.isfinite().all(), name


def test_the_loss_of_kto_equals_values_worked_by_hand() -> None:
    ratios, labels = torch.tensor([2.0, -1.0], dtype=torch.float64), torch.tensor([True, False])
    found = loss.kto_loss(ratios, labels, torch.tensor(0.5), beta=0.2, desirable=1.5, undesirable=3.0)
    assert found.tolist() == pytest.approx([1.5 * (1 - sigma(0.2 * 1.5)), 3 * (1 - sigma(0.2 * 1.5))])


def test_the_mean_of_mismatched_answers_is_not_negative_and_has_no_gradient() -> None:
    ratios = torch.tensor([0.5, 1.5], requires_grad=True)
    assert loss.mismatch(ratios).item() == 1
    assert not loss.mismatch(ratios).requires_grad
    assert loss.mismatch(-ratios).item() == 0
