from __future__ import annotations

import numpy as np
import pytest
import torch

from rlcore.types import Trajectories
from rlcore_ppo.trainer import KLCoefficient, ScoreScale, bound, token_scores

T, F = True, False


def test_the_adaptive_kl_coefficient_equals_values_worked_by_hand() -> None:
    kl = KLCoefficient(0.2, target=6.0, horizon=10_000)
    kl.update(6.6, 256)  # error .1
    assert kl.value == pytest.approx(0.2 * (1 + 0.1 * 0.0256))
    kl.update(60.0, 1000)  # error clipped to .2
    assert kl.value == pytest.approx(0.2 * 1.00256 * 1.02)
    kl.update(-3.0, 1000)  # and to -.2
    assert kl.value == pytest.approx(0.2 * 1.00256 * 1.02 * 0.98)


def test_the_adaptive_kl_coefficient_does_not_change_at_its_target() -> None:
    kl = KLCoefficient(0.3, target=2.0, horizon=100)
    kl.update(2.0, 100)
    assert kl.value == 0.3


def test_without_a_target_the_kl_coefficient_is_fixed() -> None:
    kl = KLCoefficient(0.3, target=None, horizon=1)
    kl.update(1e9, 1000)
    assert kl.value == 0.3


ROUNDS = ([1.0, 4.0, 2.0], [10.0, -3.0], [5.0], [7.5, 7.5, 100.0, -20.0])


def test_the_running_deviation_is_that_of_all_scores_so_far() -> None:
    scale = ScoreScale("running")
    for i, scores in enumerate(ROUNDS):
        expected = np.std(np.concatenate(ROUNDS[: i + 1]), ddof=1)
        assert scale.divisor(torch.tensor(scores)) == pytest.approx(expected, rel=1e-9)


def test_the_first_deviation_is_that_of_the_first_round() -> None:
    scale = ScoreScale("first")
    for scores in ROUNDS:
        assert scale.divisor(torch.tensor(scores)) == pytest.approx(np.std(ROUNDS[0], ddof=1), rel=1e-9)


@pytest.mark.parametrize("scores", [[3.0], [2.0, 2.0]])
def test_a_first_round_of_equal_scores_leaves_all_later_scores_unscaled(scores: list[float]) -> None:
    scale = ScoreScale("first")
    assert [scale.divisor(torch.tensor(each)) for each in (scores, [1.0, 9.0], [4.0, 0.0, 7.0])] == [1.0] * 3


def test_large_scores_do_not_lose_their_deviation() -> None:
    scale = ScoreScale("running")
    scale.divisor(torch.tensor([1e6, 1e6 + 1.0]))
    assert scale.divisor(torch.tensor([1e6 + 2.0, 1e6 + 3.0])) == pytest.approx(np.std([0, 1, 2, 3], ddof=1), rel=1e-9)


@pytest.mark.parametrize("scores", [[3.0], [2.0, 2.0, 2.0]])
@pytest.mark.parametrize("mode", ["running", "first"])
def test_equal_scores_are_not_scaled(mode: str, scores: list[float]) -> None:
    assert ScoreScale(mode).divisor(torch.tensor(scores)) == 1.0  # type: ignore[arg-type]


def test_scores_are_not_scaled_by_default() -> None:
    assert ScoreScale("none").divisor(torch.tensor([1.0, 9.0])) == 1.0


@pytest.mark.parametrize("mode", ["running", "first"])
def test_the_running_moments_of_scores_are_restored(mode: str) -> None:
    first, second = ScoreScale(mode), ScoreScale(mode)  # type: ignore[arg-type]
    for scores in ROUNDS[:2]:
        first.divisor(torch.tensor(scores))
    second.load_state_dict(first.state_dict())
    for scores in ROUNDS[2:]:
        assert second.divisor(torch.tensor(scores)) == first.divisor(torch.tensor(scores))


def batch() -> Trajectories:
    """Return three responses to prompts of one token: of two tokens, of one, and of three that were truncated."""
    return Trajectories.stack(
        [[1, 5, 30], [1, 30], [1, 5, 6, 7]], [[F, T, T], [F, T], [F, T, T, T]], ended=[True, True, False]
    )


def shape(
    *, dense: list[list[float]] | None = None, low: float | None = None, high: float | None = None, penalty: float = 0.0
) -> list[list[float]]:
    rows = None if dense is None else torch.tensor(dense)
    out: list[list[float]] = token_scores(
        torch.tensor([2.0, -1.0, 4.0]), rows, batch(), low=low, high=high, penalty=penalty
    ).tolist()
    return out


def test_a_score_is_earned_at_the_last_chosen_token() -> None:
    assert shape() == [[0, 0, 2, 0], [0, -1, 0, 0], [0, 0, 0, 4]]


def test_scores_are_bounded_on_either_side() -> None:
    assert shape(low=0.0) == [[0, 0, 2, 0], [0, 0, 0, 0], [0, 0, 0, 4]]
    assert shape(high=3.0) == [[0, 0, 2, 0], [0, -1, 0, 0], [0, 0, 0, 3]]
    assert shape(low=-0.5, high=1.0) == [[0, 0, 1, 0], [0, -0.5, 0, 0], [0, 0, 0, 1]]


def test_only_truncated_responses_get_the_penalty() -> None:
    assert shape(penalty=1.5) == [[0, 0, 2, 0], [0, -1, 0, 0], [0, 0, 0, 2.5]]
    assert shape(penalty=1.5, high=3.0) == [[0, 0, 2, 0], [0, -1, 0, 0], [0, 0, 0, 2.5]]


def test_dense_rewards_are_earned_slot_by_slot() -> None:
    dense = [[9.0, 1.0, -2.0, 9.0], [9.0, 0.5, 9.0, 9.0], [9.0, 0.0, 3.0, 1.0]]
    assert shape(dense=dense) == [[0, 1, -2, 0], [0, 0.5, 0, 0], [0, 0, 3, 1]]
    assert shape(dense=dense, low=-1.0, high=2.0) == [[0, 1, -1, 0], [0, 0.5, 0, 0], [0, 0, 2, 1]]
    assert shape(dense=dense, penalty=0.25) == [[0, 1, -2, 0], [0, 0.5, 0, 0], [0, 0, 3, 0.75]]


def test_a_lower_bound_of_dense_rewards_does_not_apply_to_padding() -> None:
    zeros = [[0.0] * 4] * 3
    assert shape(dense=zeros, low=0.5) == [[0, 0.5, 0.5, 0], [0, 0.5, 0, 0], [0, 0.5, 0.5, 0.5]]


def test_scores_without_bounds_are_not_clipped() -> None:
    scores = torch.tensor([1.0, -50.0])
    assert bound(scores, None, None) is scores
