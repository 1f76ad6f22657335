"""Tests of the losses against numbers worked out by hand, and of their gradients."""

from __future__ import annotations

import math

import pytest
import torch

from rlcore_reward.loss import pair_loss

CHOSEN = torch.tensor([2.0, -1.0, 0.5], dtype=torch.float64)
REJECTED = torch.tensor([1.0, 1.0, 0.5], dtype=torch.float64)


def nll(x: float) -> float:
    return math.log1p(math.exp(-x))


def test_the_loss_is_that_of_bradley_and_terry() -> None:
    """-log sigmoid(1), -log sigmoid(-2) and log 2."""
    expected = [0.31326168751822286, 2.1269280110429727, 0.6931471805599453]
    assert pair_loss(CHOSEN, REJECTED).tolist() == pytest.approx(expected, rel=1e-12)


def test_a_margin_is_subtracted_from_the_difference() -> None:
    """OpenRLHF's `logexp` ignores margins silently."""
    margins = torch.tensor([0.0, 0.5, 3.0], dtype=torch.float64)
    seen = pair_loss(CHOSEN, REJECTED, margins=margins).tolist()
    assert seen == pytest.approx([nll(1.0), nll(-2.5), nll(-3.0)], rel=1e-12)


def test_centring_adds_the_squared_sum_of_both_scores() -> None:
    seen = pair_loss(CHOSEN, REJECTED, center_coef=0.01) - pair_loss(CHOSEN, REJECTED)
    assert seen.tolist() == pytest.approx([0.09, 0.0, 0.01], rel=1e-9)


def test_ties_and_both_wins_have_a_total_probability_of_one() -> None:
    """Rao and Kupper 1967: P(first) + P(second) + P(tie) = 1."""
    ties = torch.tensor([True, True, True])
    first = pair_loss(CHOSEN, REJECTED, tie_ratio=1.7)
    second = pair_loss(REJECTED, CHOSEN, tie_ratio=1.7)
    tie = pair_loss(CHOSEN, REJECTED, ties=ties, tie_ratio=1.7)
    assert sum((-each).exp() for each in (first, second, tie)).tolist() == pytest.approx([1.0] * 3, rel=1e-9)
    assert pair_loss(CHOSEN, REJECTED, ties=~ties, tie_ratio=1.7).tolist() == first.tolist()


@pytest.mark.parametrize("large", [1e3, 1e8])
def test_large_scores_give_a_finite_loss_and_gradient(large: float) -> None:
    chosen = torch.tensor([large, -large], requires_grad=True)
    loss = pair_loss(chosen, torch.zeros(2), ties=torch.tensor([False, True]), tie_ratio=2.0).sum()
    loss.backward()
    assert bool(loss.isfinite())
    assert bool(chosen.grad is not None and chosen.grad.isfinite().all())


def test_the_gradient_is_that_of_finite_differences() -> None:
    margins, ties = torch.tensor([0.2, 0.0, 0.0], dtype=torch.float64), torch.tensor([False, False, True])
    inputs = CHOSEN.clone().requires_grad_(), REJECTED.clone().requires_grad_()

    def loss(chosen: torch.Tensor, rejected: torch.Tensor) -> torch.Tensor:
        return pair_loss(chosen, rejected, margins=margins, ties=ties, tie_ratio=2.0, center_coef=0.1)

    assert torch.autograd.gradcheck(loss, inputs)
