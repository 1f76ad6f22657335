from __future__ import annotations

import numpy as np
import pytest
import torch

from rlcore_rft.loss import first_indices, nll, percentile, thresholds


def limits(rows: list[tuple[int, float, int]], share: float) -> list[float]:
    """Return the thresholds of (prompt, score, count) rows."""
    prompts, scores, counts = zip(*rows, strict=True)
    found = thresholds(torch.tensor(scores), torch.tensor(counts), torch.tensor(prompts), percentile=share)
    return [round(limit, 6) for limit in found.tolist()]


def test_percentiles_rise_from_start_to_end() -> None:
    shares = [percentile(k, 4, start=0.7, end=0.95) for k in range(4)]
    assert shares == pytest.approx([0.7, 0.7 + 0.25 / 3, 0.7 + 0.5 / 3, 0.95])
    assert percentile(0, 1, start=0.7, end=0.95) == 0.7
    assert [percentile(k, 2, start=0.9, end=0.95) for k in range(2)] == pytest.approx([0.9, 0.95])


def test_a_threshold_is_the_quantile_of_the_prompts_own_scores() -> None:
    # Prompt 0: index 0.7 * 4 = 2.8 of 1 2 3 4 5 gives 3.8. Prompt 1: index 0.7 * 1 of 0 and 10 gives 7.
    rows = [(0, 4.0, 1), (1, 10.0, 1), (0, 1.0, 1), (0, 5.0, 1), (0, 3.0, 1), (1, 0.0, 1), (0, 2.0, 1)]
    assert limits(rows, 0.7) == [3.8, 7.0]


def test_a_quantile_counts_a_response_as_often_as_it_was_sampled() -> None:
    # 1 1 1 5: index 0.75 * 3 = 2.25 is a quarter of the way from 1 to 5. The other prompt lowers the minimum.
    assert limits([(0, 1.0, 3), (0, 5.0, 1), (1, -1.0, 2)], 0.75) == [2.0, -0.999]
    assert limits([(0, 1.0, 1), (0, 5.0, 1), (1, -1.0, 2)], 0.75) == [4.0, -0.999]


def test_thresholds_are_bounded_by_the_scores_of_all_prompts() -> None:
    # Prompts with constant scores: the worst is below its bound and dropped; the best and another are kept.
    rows = [(0, 0.0, 4), (1, 1.0, 4), (2, 0.5, 4)]
    assert limits(rows, 0.9) == [0.001, 0.999, 0.5]
    passing = [score >= limit for (_, score, _), limit in zip(rows, limits(rows, 0.9), strict=True)]
    assert passing == [False, True, True]


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_the_best_response_always_passes_and_the_worst_never(share: float) -> None:
    rows = [(0, 0.0, 1), (0, 2.0, 1), (1, 1.0, 1), (1, 3.0, 1)]
    low, high = limits(rows, share)
    assert high <= 3.0
    assert low > 0.0


@pytest.mark.parametrize("spread", [0.0, 0.0005])
def test_no_response_passes_if_all_scores_are_equal(spread: float) -> None:
    rows = [(0, 7.0, 2), (0, 7.0 + spread, 1), (1, 7.0, 3)]
    assert all(limit > 7.0 + spread for limit in limits(rows, 0.7))


def test_the_margin_of_a_threshold_is_kept_for_large_scores() -> None:
    assert limits([(0, 2.0**20, 3), (1, 2.0**21, 3)], 0.5) == [2.0**20 + 0.001, 2.0**21 - 0.001]


def test_quantiles_agree_with_numpy() -> None:
    random = np.random.default_rng(3)
    prompts, counts = random.integers(0, 5, 60), random.integers(1, 4, 60)
    prompts[:5] = range(5)
    scores = random.normal(size=60).astype(np.float32)
    found = thresholds(torch.tensor(scores), torch.tensor(counts), torch.tensor(prompts), percentile=0.83)
    for prompt in range(5):
        own = np.repeat(scores[prompts == prompt], counts[prompts == prompt]).astype(np.float64)
        assert float(found[prompt]) == pytest.approx(np.quantile(own, 0.83), abs=1e-12)


def test_first_indices_gives_the_first_place_and_the_count_of_each_key() -> None:
    places, counts = first_indices(["b", "a", "b", "c", "a", "b"])
    assert places.tolist() == [0, 1, 3]
    assert counts.tolist() == [3, 2, 1]
    assert first_indices([])[0].dtype == torch.long


def test_the_loss_has_one_number_per_token() -> None:
    assert nll(torch.tensor([[0.0, -1.5], [-0.5, 0.0]])).tolist() == [[0.0, 1.5], [0.5, 0.0]]
