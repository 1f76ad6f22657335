from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from rlcore import ops

T, F = True, False
NAN = math.nan


def test_a_chosen_token_is_predicted_from_the_token_before_it() -> None:
    action_mask = torch.tensor([[F, F, T, T, F], [F, T, F, F, T]])
    expected = torch.tensor([[F, T, T, F, F], [T, F, F, T, F]])
    assert torch.equal(ops.predicting(action_mask), expected)


def test_spread_places_numbers_on_the_chosen_tokens_row_by_row() -> None:
    action_mask = torch.tensor([[F, T, F, T], [F, F, T, F]])
    out = ops.spread(torch.tensor([1.0, 2.0, 3.0]), action_mask)
    assert out.tolist() == [[0, 1, 0, 2], [0, 0, 3, 0]]


def test_spreading_carries_gradients_back() -> None:
    flat = torch.tensor([1.0, 2.0], requires_grad=True)
    (ops.spread(flat, torch.tensor([[F, T, F, T]])) * torch.tensor([[9.0, 2.0, 9.0, 5.0]])).sum().backward()
    assert flat.grad is not None
    assert flat.grad.tolist() == [2, 5]


def test_token_logprobs_are_those_of_the_normalised_distribution() -> None:
    logits = torch.log(torch.tensor([[1.0, 2.0, 5.0], [4.0, 4.0, 2.0]])) + 3.0
    out = ops.token_logprobs(logits, torch.tensor([2, 0]))
    assert out.tolist() == pytest.approx([math.log(5 / 8), math.log(0.4)], abs=1e-6)


def test_token_logprobs_of_half_precision_logits_are_computed_in_float32() -> None:
    logits = torch.tensor([[10.0, 0.0, 0.0]], dtype=torch.bfloat16)
    out = ops.token_logprobs(logits, torch.tensor([0]))
    assert out.dtype == torch.float32
    assert out.item() == pytest.approx(-math.log1p(2 * math.exp(-10)), rel=1e-3)


def test_entropy_is_in_nats() -> None:
    uniform, skewed = torch.zeros(4), torch.log(torch.tensor([0.5, 0.25, 0.125, 0.125]))
    assert ops.entropy(torch.stack([uniform, skewed])).tolist() == pytest.approx([math.log(4), 1.75 * math.log(2)])


def test_masked_sum_and_mean_ignore_other_entries() -> None:
    values, mask = torch.tensor([[1.0, NAN], [math.inf, 4.0]]), torch.tensor([[T, F], [F, T]])
    assert ops.masked_sum(values, mask).item() == 5
    assert ops.masked_mean(values, mask).item() == 2.5
    assert ops.masked_mean(values, torch.zeros_like(mask)).item() == 0


@pytest.mark.parametrize("garbage", [0.0, 1e6, -3.0, NAN, math.inf])
def test_whitening_ignores_padding(garbage: float) -> None:
    values = torch.tensor([[garbage, 1.0, 3.0, garbage], [garbage, garbage, 5.0, garbage]])
    mask = torch.tensor([[F, T, T, F], [F, F, T, F]])
    deviation = math.sqrt(8 / 3)  # population: ((-2)^2 + 0^2 + 2^2) / 3
    out = ops.whiten(values, mask)
    assert out.flatten().tolist() == pytest.approx([0, -2 / deviation, 0, 0, 0, 0, 2 / deviation, 0])


def test_whitening_equal_numbers_gives_zeros() -> None:
    out = ops.whiten(torch.full((1, 3), 2.5), torch.tensor([[F, T, T]]))
    assert out.tolist() == [[0, 0, 0]]


def test_whitening_divides_by_no_less_than_the_floor() -> None:
    values, mask = torch.tensor([[1.0, 3.0, 5.0]]), torch.tensor([[T, T, T]])
    assert ops.whiten(values, mask, min_std=4.0).tolist() == [[-0.5, 0.0, 0.5]]
    noise = 1e-8 * torch.tensor([[1.0, -1.0, 0.0]])
    assert ops.whiten(noise, mask).abs().max() <= 1e-3


def test_kl_estimators_at_hand_worked_points() -> None:
    logprobs, ref = torch.tensor([math.log(0.5), math.log(0.1)]), torch.tensor([math.log(0.25), math.log(0.2)])
    difference = [math.log(2), -math.log(2)]
    assert ops.kl_estimate(logprobs, ref).tolist() == pytest.approx(difference)
    halves = [math.log(2) ** 2 / 2] * 2
    assert ops.kl_estimate(logprobs, ref, estimator="k2").tolist() == pytest.approx(halves)
    # exp(-D) - 1 + D: 1/2 - 1 + log 2 and 2 - 1 - log 2
    assert ops.kl_estimate(logprobs, ref, estimator="k3").tolist() == pytest.approx(
        [math.log(2) - 0.5, 1 - math.log(2)]
    )


@pytest.mark.parametrize("estimator", ["k1", "k3"])
def test_unbiased_estimators_average_to_the_kl_of_the_whole_vocabulary(estimator: str) -> None:
    p, q = torch.tensor([0.7, 0.2, 0.1]), torch.tensor([0.3, 0.3, 0.4])
    exact = sum(a * math.log(a / b) for a, b in zip(p.tolist(), q.tolist(), strict=True))
    expected = (p * ops.kl_estimate(p.log(), q.log(), estimator=estimator)).sum().item()
    assert expected == pytest.approx(exact, rel=1e-6)
    assert ops.full_kl(p.log()[None] + 2, q.log()[None] - 1).item() == pytest.approx(exact, rel=1e-5)


def test_k3_is_never_negative() -> None:
    generator = torch.Generator().manual_seed(0)
    logprobs, ref = torch.randn(2, 1000, generator=generator)
    assert (ops.kl_estimate(logprobs, ref, estimator="k3") >= 0).all()
    assert (ops.kl_estimate(logprobs, ref) < 0).any()


def test_another_estimator_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match="'k4'"):
        ops.kl_estimate(torch.zeros(1), torch.zeros(1), estimator="k4")


REWARDS, VALUES = (1.0, 0.0, 2.0), (0.5, 1.0, -1.0)
LAYOUTS = {
    "padded right": ([F, T, T, T, F, F], [1, 2, 3]),
    "padded left": ([F, F, F, T, T, T], [3, 4, 5]),
    "interrupted": ([F, T, F, F, T, T], [1, 4, 5]),
    "ends with another": ([F, T, T, F, T, F], [1, 2, 4]),
}


def lay(numbers: tuple[float, ...], where: list[int], garbage: float) -> Tensor:
    row = torch.full((1, 6), garbage)
    row[0, where] = torch.tensor(numbers)
    return row


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    ("lam", "bootstrap", "expected"),
    [
        # the returns 1 + .5 (0 + .5 * 2), 0 + .5 * 2 and 2, minus the values
        (1.0, None, [1.0, 0.0, 3.0]),
        # by hand: 1 + .5 * 1 - .5, then 0 + .5 * (-1) - 1, then 2 + 0 - (-1)
        (0.0, None, [1.0, -1.5, 3.0]),
        # from the end: 3, then -1.5 + .25 * 3, then 1 + .25 * (-.75)
        (0.5, None, [0.8125, -0.75, 3.0]),
        # the returns from the end: 2 + .5 * 4, then 0 + .5 * 4, then 1 + .5 * 2
        (1.0, 4.0, [1.5, 1.0, 5.0]),
        (0.0, 4.0, [1.0, -1.5, 5.0]),
    ],
)
def test_advantages_follow_the_chosen_tokens_only(
    layout: str, lam: float, bootstrap: float | None, expected: list[float]
) -> None:
    mask, where = LAYOUTS[layout]
    out = ops.gae(
        lay(REWARDS, where, 77.0), lay(VALUES, where, -55.0), torch.tensor([mask]), gamma=0.5, lam=lam,
        bootstrap=None if bootstrap is None else torch.tensor([bootstrap]),
    )  # fmt: skip
    assert out[0].tolist() == pytest.approx(lay(tuple(expected), where, 0.0)[0].tolist())


def test_lambda_one_is_the_monte_carlo_return_less_the_value() -> None:
    generator = torch.Generator().manual_seed(3)
    rewards, values = torch.randn(4, 9, generator=generator), torch.randn(4, 9, generator=generator)
    mask = torch.rand(4, 9, generator=generator) < 0.6
    out = ops.gae(rewards, values, mask, gamma=0.9, lam=1.0)
    for i in range(4):
        where = mask[i].nonzero()[:, 0].tolist()
        for k, t in enumerate(where):
            outcome = sum(0.9**j * float(rewards[i, s]) for j, s in enumerate(where[k:]))
            assert float(out[i, t]) == pytest.approx(outcome - float(values[i, t]), abs=1e-5)
    assert out[~mask].abs().sum() == 0


def test_the_discount_between_turns_differs_from_that_inside_a_turn() -> None:
    mask = torch.tensor([[F, T, T, F, T, T]])
    rewards, values = torch.tensor([[9.0, 0, 1, 9, 0, 4]]), torch.tensor([[9.0, 2, 1, 9, 3, 2]])
    out = ops.gae(rewards, values, mask, gamma=1.0, lam=1.0, turn_gamma=0.5, turn_lam=0.5)
    # from the end: 4 - 2; 4 - 3; 1 + .5 * 3 - 1 + .25 * 1; 1 + .5 * 3 - 2 + .25 * 1
    assert out.tolist() == [[0.0, 0.75, 1.75, 0.0, 1.0, 2.0]]
    ended = ops.gae(rewards, values, mask, gamma=1.0, lam=1.0, turn_gamma=0.5, bootstrap=torch.tensor([6.0]))
    assert ended.tolist() == [[0.0, 0.5 * 7 + 1 - 2, 0.5 * 7 + 1 - 1, 0.0, 7.0 - 3, 7.0 - 2]]
    cut = ops.gae(
        rewards, values, mask, gamma=1.0, lam=1.0, turn_gamma=0.5, bootstrap=torch.tensor([6.0]),
        is_cut=torch.tensor([True]),
    )  # fmt: skip
    # The token after the last one would belong to the same turn: 4 + 6, and .5 of these 10 before the turn.
    assert cut.tolist() == [[0.0, 0.5 * 10 + 1 - 2, 0.5 * 10 + 1 - 1, 0.0, 10.0 - 3, 10.0 - 2]]
    plain = ops.gae(rewards, values, mask, gamma=0.9, lam=0.7)
    assert torch.equal(plain, ops.gae(rewards, values, mask, gamma=0.9, lam=0.7, turn_gamma=0.9, turn_lam=0.7))


def test_a_sequence_does_not_change_its_neighbours_advantages() -> None:
    generator = torch.Generator().manual_seed(4)
    rewards, values = torch.randn(3, 5, generator=generator), torch.randn(3, 5, generator=generator)
    mask = torch.tensor([[F, T, T, T, T], [F, F, F, F, T], [F, T, F, T, F]])
    together = ops.gae(rewards, values, mask, gamma=0.9, lam=0.8)
    for i in range(3):
        alone = ops.gae(rewards[i : i + 1], values[i : i + 1], mask[i : i + 1], gamma=0.9, lam=0.8)
        assert torch.equal(together[i], alone[0])


def test_scores_are_placed_on_the_last_chosen_token() -> None:
    action_mask = torch.tensor(
        [
            [F, F, T, T, T],  # truncated: up to the end
            [F, T, F, F, F],  # one token
            [F, T, T, F, F],  # EOS, then padding
            [F, T, F, T, F],  # another speaker's tokens in between and after
        ]
    )
    out = ops.place_last(torch.tensor([1.0, -2.0, 3.0, 0.5]), action_mask)
    assert out.tolist() == [[0, 0, 0, 0, 1], [0, -2, 0, 0, 0], [0, 0, 3, 0, 0], [0, 0, 0, 0.5, 0]]


def test_a_score_without_a_chosen_token_is_placed_nowhere() -> None:
    assert ops.place_last(torch.tensor([4.0]), torch.tensor([[F, F, F]])).tolist() == [[0, 0, 0]]


def test_only_tokens_up_to_the_last_predicted_position_are_needed() -> None:
    mask = torch.tensor([[1, 1, 1, 1, 0], [0, 1, 1, 1, 1], [1, 1, 0, 0, 0]]).bool()
    rows = torch.tensor([[0, 1, 0, 0, 0], [0, 1, 0, 1, 0], [0, 0, 0, 0, 0]]).bool()
    expected = torch.tensor([[1, 1, 0, 0, 0], [0, 1, 1, 1, 0], [1, 0, 0, 0, 0]]).bool()
    assert torch.equal(ops.needed(mask, rows) & mask, expected)


def test_ops_accept_a_batch_without_tokens() -> None:
    """B = 2 sequences of T = 0 tokens, and N = 0 chosen tokens of a vocabulary of 3."""
    empty, mask = torch.zeros(2, 0), torch.zeros(2, 0, dtype=torch.bool)
    assert ops.predicting(mask).shape == ops.needed(mask, mask).shape == (2, 0)
    assert ops.place_last(torch.ones(2), mask).shape == ops.spread(torch.zeros(0), mask).shape == (2, 0)
    assert ops.gae(empty, empty, mask, gamma=0.9, lam=0.9).shape == ops.whiten(empty, mask).shape == (2, 0)
    assert ops.masked_sum(empty, mask).item() == ops.masked_mean(empty, mask).item() == 0
    assert ops.kl_estimate(empty, empty, estimator="k3").shape == (2, 0)
    logits, tokens = torch.zeros(0, 3), torch.zeros(0, dtype=torch.long)
    for flat in (ops.token_logprobs(logits, tokens), ops.entropy(logits), ops.full_kl(logits, logits)):
        assert flat.shape == (0,)


def test_soundness_depends_only_on_entries_that_count() -> None:
    mask = torch.tensor([[True, False], [True, True]])
    fine = torch.tensor([[1.0, math.nan], [-3e38, 0.0]])
    assert ops.soundness(mask, fine, -fine).item() == 1.0
    for bad in (math.nan, math.inf, -math.inf):
        assert math.isnan(
            ops.soundness(mask, fine, fine.index_put((torch.tensor(1), torch.tensor(1)), torch.tensor(bad)))
        )
