from __future__ import annotations

import pytest
import torch

from rlcore_reinforce.loss import leave_one_out, policy_loss


def test_each_score_is_compared_with_the_mean_of_the_others() -> None:
    # Mean of the other rewards, for 1: (3 + 8) / 2 = 5.5; for 3: (1 + 8) / 2 = 4.5; for 8: (1 + 3) / 2 = 2.
    assert leave_one_out(torch.tensor([1.0, 3.0, 8.0])).tolist() == [-4.5, -1.5, 6.0]
    assert leave_one_out(torch.tensor([2.0, 5.0])).tolist() == [-3.0, 3.0]


def test_a_constant_added_to_all_rewards_cancels() -> None:
    scores = torch.tensor([1.0, 3.0, 8.0, -2.0])
    assert torch.allclose(leave_one_out(scores), leave_one_out(scores + 16), atol=1e-5)
    assert leave_one_out(torch.full((5,), 4.0)).tolist() == [0.0] * 5


def test_the_gradient_estimates_that_of_the_expected_reward() -> None:
    """Two arms, three pulls: average the estimate over all outcomes by hand and compare it with the true gradient."""
    probability, rewards = 0.3, (1.0, 5.0)  # probability of arm 1; below, gradients by its logit
    slopes, chances = (-probability, 1 - probability), (1 - probability, probability)
    outcomes = torch.cartesian_prod(*[torch.tensor([0, 1])] * 3).tolist()
    expected = 0.0
    for pulls in outcomes:
        advantages = leave_one_out(torch.tensor([rewards[arm] for arm in pulls], dtype=torch.float64))
        estimate = sum(float(a) * slopes[arm] for a, arm in zip(advantages, pulls, strict=True)) / 3
        expected += estimate * chances[pulls[0]] * chances[pulls[1]] * chances[pulls[2]]
    assert expected == pytest.approx((rewards[1] - rewards[0]) * probability * (1 - probability))


def test_the_loss_has_one_number_per_token() -> None:
    logprobs = torch.tensor([[0.0, -1.0, -2.0], [-0.5, 0.0, 0.0]], requires_grad=True)
    losses = policy_loss(logprobs, torch.tensor([2.0, -4.0]))
    assert losses.tolist() == [[0.0, 2.0, 4.0], [-2.0, 0.0, 0.0]]
    losses.sum().backward()
    assert logprobs.grad is not None
    assert logprobs.grad.tolist() == [[-2.0] * 3, [4.0] * 3]
