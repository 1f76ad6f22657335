"""Tests of the power of a comparison: expected shares are those of simulated experiments."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest

from rlcore_tools.bench.contest import are_enough
from rlcore_tools.bench.measure import REPEATED_LEVEL, compare_resource, found_share, say_power, visible_change

T_4, T_1 = 2.776, 12.706
"""Quantiles of Student's t at .975 with 4 and 1 degrees of freedom, from a table."""


@pytest.mark.parametrize(("pairs", "quantile"), [(5, T_4), (2, T_1)])
@pytest.mark.parametrize("change", [0.0, 1.0, 2.5])
def test_the_share_of_comparisons_that_find_a_change_is_that_of_simulated_ones(
    pairs: int, quantile: float, change: float
) -> None:
    draws = np.random.default_rng(0).normal(change, 1.0, size=(100_000, pairs))
    bounds = quantile * draws.std(axis=1, ddof=1) / math.sqrt(pairs)
    simulated = float((abs(draws.mean(axis=1)) > bounds).mean())
    assert found_share(change, 1.0, pairs) == pytest.approx(simulated, abs=0.006)  # standard error .0016


def test_a_visible_change_is_found_in_80_of_100_comparisons_and_scales_with_the_noise() -> None:
    for pairs in (2, 3, 5, 20, 100):
        visible = visible_change(0.1, pairs)
        assert found_share(visible, 0.1, pairs) == pytest.approx(0.8, abs=1e-6)
        assert visible_change(0.3, pairs) == pytest.approx(3 * visible)
    assert visible_change(0.1, 20) < visible_change(0.1, 5)


@pytest.mark.parametrize("slowdown", [1.0, 1.05, 1.1])
def test_versions_slower_by_a_tenth_are_called_worse_as_often_as_said_and_equal_ones_mostly_the_same(
    slowdown: float,
) -> None:
    """Times of five seeds vary by 3 %, of which a change of 7 % is said to be visible."""
    before, after = np.exp(np.random.default_rng(0).normal(0, 0.03, size=(2, 2000, 5)))
    found = Counter(compare_resource("c", "s", a, b * slowdown).word for a, b in zip(before, after, strict=True))
    said = found_share(math.log(slowdown), 0.03 * math.sqrt(2), 5)
    worse, called = found["worse"] / 2000, (found["worse"] + found["better"]) / 2000
    assert (called if slowdown == 1 else worse) == pytest.approx(said, abs=0.03)  # standard error at most .011
    assert (worse > 0.8) == (slowdown == 1.1)


@pytest.mark.nightly
@pytest.mark.parametrize("noise", [0.03, 0.07])
def test_pairs_that_are_added_until_they_seem_enough_find_a_difference_of_equal_versions_in_5_of_100_at_most(
    noise: float,
) -> None:
    """The noise is that of a ratio; changes of 5 % are to be seen."""
    draws = np.random.default_rng(0).normal(0, noise, size=(2000, 60))
    excluded: Counter[str] = Counter()
    for logs in draws:
        ratios = np.exp(logs)
        pairs = [{"theirs": {"step_cpu_s": 1.0}, "ours": {"step_cpu_s": float(ratio)}} for ratio in ratios]
        count = next(n for n in range(2, 61) if n == 60 or are_enough(pairs[:n], 0.05))
        ones = [1.0] * count
        for name, level in (("once", 0.05), ("repeatedly", REPEATED_LEVEL)):
            found = compare_resource("c", "s", ones, ratios[:count], level=level)
            excluded[name] += not found.low <= 0 <= found.high
        slower = compare_resource("c", "s", ones, 1.05 * ratios[:count], level=REPEATED_LEVEL)
        excluded["slower"] += slower.word == "worse"
    assert excluded["repeatedly"] / 2000 <= 0.05  # standard error .005
    assert excluded["slower"] / 2000 > 0.77
    assert excluded["once"] > 1.3 * excluded["repeatedly"]


def test_the_power_of_a_number_of_seeds_is_said_for_some_amounts_of_noise() -> None:
    assert "5 seeds find, in 80 of 100 comparisons, a change of 2% where runs vary by 1%, 7% where " in say_power(5)
