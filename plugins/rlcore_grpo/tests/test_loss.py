from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from rlcore import ops
from rlcore_grpo.loss import (
    cispo_loss,
    clipped_loss,
    off_policy,
    ratios,
    sapo_loss,
    token_weights,
    uncertain,
    vespo_loss,
    vespo_weights,
)

GARBAGE = 999.0
MASK = torch.tensor([[True, True, False], [True, False, False]])


def numbers(*rows: list[float]) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64)


def test_a_ratio_compares_a_token_or_the_mean_of_a_response() -> None:
    new, old = numbers([-1.0, -2.0, GARBAGE], [-0.5, math.inf, 0.0]), numbers([-1.5, -1.0, 0.0], [-0.5, 0.0, GARBAGE])
    e = math.exp
    assert ratios(new, old, MASK).flatten().tolist() == pytest.approx([e(0.5), e(-1.0), 1, 1, 1, 1])
    by_response = ratios(new, old, MASK, level="sequence")
    assert by_response.flatten().tolist() == pytest.approx([e(-0.25)] * 3 + [1] * 3)


def test_the_ratio_of_a_response_is_the_product_over_its_tokens() -> None:
    """TRL 1.16's RLOO: one ratio of probabilities for a response, clipped once."""
    new, old = numbers([-1.0, -2.0, GARBAGE], [-0.5, math.inf, 0.0]), numbers([-1.5, -1.0, 0.0], [-0.2, 0.0, GARBAGE])
    whole = ratios(new.requires_grad_(), old, MASK, level="product")
    assert whole.flatten().tolist() == pytest.approx([math.exp(-0.5)] * 3 + [math.exp(-0.3)] * 3)
    loss = clipped_loss(whole, numbers([2.0], [-1.0]), low=0.2, high=0.2)  # .61 and .74: only the second is clipped
    weights, divisor = token_weights(MASK.sum(1), norm="sequence", max_new_tokens=3)
    ((loss * weights).where(MASK, 0.0).sum() / divisor).backward()
    assert new.grad is not None
    assert new.grad.flatten().tolist() == pytest.approx([-math.exp(-0.5)] * 2 + [0, 0, 0, 0])


def test_the_product_of_a_long_response_is_bounded_and_exact_within_the_bounds() -> None:
    gaps = torch.tensor([0.015, 0.025, 3.0, -3.0])  # times 1000 tokens: 15, 25, 3000 and -3000 nats
    new = gaps[:, None].repeat(1, 1000).double().requires_grad_()
    whole = ratios(new, torch.zeros_like(new), torch.ones(4, 1000, dtype=torch.bool), level="product")
    bounds = [math.exp(15), math.exp(20), math.exp(20), math.exp(-20)]
    torch.testing.assert_close(whole[:, 0].tolist(), bounds, rtol=1e-5, atol=0.0)
    whole[:, 0].sum().backward()
    assert new.grad is not None
    torch.testing.assert_close(new.grad[0], whole[0].detach(), rtol=1e-9, atol=0.0)  # d exp(sum) / d each = exp(sum)
    assert torch.equal(new.grad[1:], torch.zeros(3, 1000).double())
    loss = clipped_loss(whole, torch.tensor([[1.0], [-1.0], [-1.0], [1.0]]).double(), low=0.2, high=0.2)
    assert loss.isfinite().all()


def test_vespo_weighs_a_response_by_its_whole_ratio_and_the_sign_of_its_advantage() -> None:
    # w = exp(-.5) with k 2 and lambda 3, and exp(.3) with k 3 and lambda 2; the others' tokens do not count.
    new, old = numbers([-1.0, -2.0, GARBAGE], [-0.2, math.inf, 0.0]), numbers([-1.5, -1.0, 0.0], [-0.5, 0.0, GARBAGE])
    advantages, e = numbers([2.0], [-1.0]), math.exp
    weights = vespo_weights(new, old, MASK, advantages)
    expected = [e(-1.0) * e(3 - 3 * e(-0.5)), e(0.9) * e(2 - 2 * e(0.3))]
    assert weights.flatten().tolist() == pytest.approx(expected)
    tokens = numbers([-1.0, -2.0, 5.0], [-0.2, 5.0, 5.0]).requires_grad_()
    vespo_loss(weights, tokens, advantages).where(MASK, 0.0).sum().backward()
    assert tokens.grad is not None
    by_hand = [-2 * expected[0]] * 2 + [0.0, expected[1], 0.0, 0.0]
    assert tokens.grad.flatten().tolist() == pytest.approx(by_hand)


def test_vespo_weighs_the_policy_that_sampled_by_one_and_what_is_far_by_zero() -> None:
    far = numbers([0.0, 0.0], [-900.0, 0.0], [900.0, 0.0])
    mask, advantages = torch.ones(3, 2, dtype=torch.bool), numbers([1.0], [1.0], [-1.0])
    assert vespo_weights(far, torch.zeros_like(far), mask, advantages).flatten().tolist() == [1.0, 0.0, 0.0]


def test_corrections_of_a_sampler_multiply_the_ratio_that_vespo_weighs() -> None:
    new, corrections = numbers([0.2, 0.1, GARBAGE]), numbers([1.5, 0.8, -1.0])
    mask, w = torch.tensor([[True, True, False]]), math.exp(0.3) * 1.2
    seen = vespo_weights(new, torch.zeros_like(new), mask, numbers([1.0]), corrections=corrections)
    assert float(seen) == pytest.approx(w**2 * math.exp(3 - 3 * w))
    none = vespo_weights(new, torch.zeros_like(new), mask, numbers([1.0]), corrections=numbers([0.0, 1.0, 1.0]))
    assert float(none) == 0.0


def test_the_gradient_of_a_response_reaches_each_of_its_tokens_and_no_padding() -> None:
    """A product with a mask of zeros would be NaN: infinity times 0."""
    new = numbers([-1.0, -2.0, GARBAGE], [-0.5, 0.0, 0.0]).requires_grad_()
    old = numbers([-1.5, -1.0, GARBAGE], [-0.5, -math.inf, 0.0])
    (ratios(new, old, MASK, level="sequence") * MASK).sum().backward()
    assert new.grad is not None
    half = math.exp(-0.25)  # d/dx of 2 exp(mean of two): exp(mean) for each token
    assert new.grad.flatten().tolist() == pytest.approx([half, half, 0, 1, 0, 0])


def test_the_clipped_loss_is_that_of_the_smaller_gain() -> None:
    # A = 2: ratio 1.5 counts as 1.28, .5 as itself. A = -1: ratio .5 counts as .8, 1.5 as itself.
    seen = clipped_loss(numbers([1.5, 0.5], [0.5, 1.5]), numbers([2.0], [-1.0]), low=0.2, high=0.28)
    assert seen.flatten().tolist() == pytest.approx([-2.56, -1.0, 0.8, 1.5])


def test_the_gradient_stops_where_the_ratio_has_moved_far_enough() -> None:
    ratio = numbers([1.5, 1.1, 0.5], [0.5, 0.9, 1.5]).requires_grad_()
    clipped_loss(ratio, numbers([2.0], [-1.0]), low=0.2, high=0.28).sum().backward()
    assert ratio.grad is not None
    assert ratio.grad.flatten().tolist() == [0.0, -2.0, -2.0, 0.0, 1.0, 1.0]


def test_a_second_bound_limits_the_loss_of_bad_responses() -> None:
    seen = clipped_loss(numbers([5.0, 2.0], [5.0, 2.0]), numbers([-1.0], [1.0]), low=0.2, high=0.2, dual_clip=3.0)
    assert seen.flatten().tolist() == pytest.approx([3.0, 2.0, -1.2, -1.2])


def test_cispo_weighs_log_probs_by_a_constant_ratio_with_a_bound_on_the_ratio_itself() -> None:
    """TRL 1.16 bounds the ratio by .2, SkyRL #553 and #1928 by 1 + .2."""
    new, old = numbers([0.0, 2.0]).requires_grad_(), numbers([0.0, 0.0])
    cispo_loss(ratios(new, old, new > -1), new, numbers([3.0]), cap=5.0).sum().backward()
    assert new.grad is not None
    assert new.grad.flatten().tolist() == pytest.approx([-3.0, -15.0])  # exp(2) = 7.4 is bounded by 5; 1 is not by .2


def test_sapo_is_a_sigmoid_of_the_ratio_with_a_temperature_by_sign() -> None:
    # At ratio 1: sigmoid(0) = 1/2, so -(4 / tau) A / 2; its slope is (4 / tau) tau / 4 = 1 for either sign.
    ratio = numbers([1.0], [1.0]).requires_grad_()
    loss = sapo_loss(ratio, numbers([2.0], [-2.0]))
    assert loss.flatten().tolist() == pytest.approx([-4.0, 4.0 / 1.05])
    loss.sum().backward()
    assert ratio.grad is not None
    assert ratio.grad.flatten().tolist() == pytest.approx([-2.0, 2.0])
    far = sapo_loss(numbers([1.5], [1.5]), numbers([2.0], [-2.0])).flatten().tolist()
    assert far == pytest.approx([-8 / (1 + math.exp(-0.5)), 8 / 1.05 / (1 + math.exp(-0.525))])


@pytest.mark.parametrize(
    ("norm", "weights", "divisor"),
    [
        ("token", [1.0, 1.0, 1.0], 3.0),
        ("sequence", [0.5, 1.0, 1.0], 2.0),
        ("sum", [1.0, 1.0, 1.0], 2.0),
        ("constant", [1.0, 1.0, 1.0], 30.0),
    ],
)
def test_weights_and_divisors_leave_out_responses_that_do_not_count(
    norm: str, weights: list[float], divisor: float
) -> None:
    mask = torch.cat([MASK, torch.zeros(1, 3, dtype=torch.bool)])  # lengths 2, 1 and 0: two responses that count
    seen = token_weights(mask.sum(1), norm=norm, max_new_tokens=10)
    assert (seen[0].flatten().tolist(), seen[1]) == (weights, divisor)


def test_the_divisor_is_zero_if_no_token_counts() -> None:
    for norm in ("token", "sequence", "sum", "constant"):
        assert token_weights(torch.zeros(2, dtype=torch.long), norm=norm, max_new_tokens=4)[1] == 0.0


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("token_truncate", [[2.0, 0.5], [1.0, 1.0]]),
        ("token_mask", [[0.0, 0.5], [1.0, 1.0]]),
        ("sequence_truncate", [[1.5, 1.5], [1.0, 1.0]]),
        ("sequence_mask", [[1.5, 1.5], [1.0, 1.0]]),
        ("geometric_mask", [[1.0, 1.0], [1.0, 1.0]]),
    ],
)
def test_corrections_of_a_sampler_equal_weights_worked_by_hand(kind: str, expected: list[list[float]]) -> None:
    # Ratios of the first response: 3 and .5, product 1.5, geometric mean 1.22; of the second: 1.
    old = numbers([math.log(3.0), math.log(0.5)], [0.0, GARBAGE])
    mask = torch.tensor([[True, True], [True, False]])
    seen = ops.correction(old, torch.zeros_like(old), mask, kind=kind, low=0.2, high=2.0)
    assert seen.flatten().tolist() == pytest.approx([x for row in expected for x in row])


def test_a_long_response_is_masked_by_its_sum_and_not_by_its_mean() -> None:
    """Equal small gaps add up: the sum over 200 tokens leaves the bounds, the geometric mean does not.

    TRL #5814 and #4772 mask long responses by their sum by default; here nothing is masked unless it is set.
    """
    old, mask = torch.full((1, 200), 0.01, dtype=torch.float64), torch.ones(1, 200, dtype=torch.bool)
    bounds = {"low": 0.5, "high": 2.0}
    assert ops.correction(old, torch.zeros_like(old), mask, kind="sequence_mask", **bounds).sum() == 0
    assert ops.correction(old, torch.zeros_like(old), mask, kind="geometric_mask", **bounds).sum() == 200
    same = ops.correction(old, old, mask, kind="sequence_mask", **bounds)
    assert same.unique().tolist() == [1.0]


def test_bad_responses_whose_mean_log_prob_fell_are_off_policy() -> None:
    # Mean falls: (.2 + .4) / 2 = .3, .3, and of the one token that counts .1.
    sampled = numbers([-1.0, -1.0], [-1.0, -1.0], [-1.0, GARBAGE])
    logprobs = numbers([-1.2, -1.4], [-1.2, -1.4], [-1.1, -GARBAGE])
    mask = torch.tensor([[True, True], [True, True], [True, False]])
    for threshold, expected in ((0.29, [True, False, False]), (0.31, [False] * 3), (0.09, [True, False, True])):
        seen = off_policy(logprobs, sampled, mask, numbers([-1.0], [1.0], [-1.0]), threshold=threshold)
        assert seen.flatten().tolist() == expected


def test_an_unknown_correction_is_an_error() -> None:
    with pytest.raises(ValueError, match="'mean_mask'"):
        ops.correction(
            torch.zeros(1, 1), torch.zeros(1, 1), torch.ones(1, 1, dtype=torch.bool), kind="mean_mask", low=0, high=1
        )


def test_the_most_uncertain_tokens_are_those_above_a_quantile_of_all_that_count() -> None:
    entropies = numbers([0.1, 0.9, GARBAGE], [0.5, 0.7, 0.3])
    mask = torch.tensor([[True, True, False], [True, True, True]])
    # Sorted .1 .3 .5 .7 .9: the quantile .5 is .5.
    assert float(uncertain(entropies[mask], share=0.5)) == 0.5
    assert float(uncertain(entropies[mask], share=1.0)) == 0.1
