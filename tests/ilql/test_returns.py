from __future__ import annotations

import math
from typing import Any

import pytest

from rlcore.types import Sample, SampleReward
from rlcore_ilql.trainer import Returns, read_returns

SAMPLE = Sample(tokens=(1, 2, 3, 4), action_mask=(False, True, True, False))


def read(*rewards: tuple[float, float], standardise: bool = True) -> Returns:
    """Return the rewards of the two chosen tokens; they are dense where the first is not zero."""
    given = [SampleReward((0.0, first, last, 0.0), dense=first != 0) for first, last in rewards]
    return read_returns(given, [SAMPLE] * len(given), standardise=standardise)


def test_standardised_returns_have_mean_0_and_unbiased_deviation_1() -> None:
    returns = read((0, 1), (0, 0), (0, 5))
    # mean 2, squared distances 1 + 4 + 9 over 2
    std = math.sqrt(7)
    assert (returns.mean, returns.std) == (2, pytest.approx(std))
    expected = [(0, 0, -1 / std, 0), (0, 0, -2 / std, 0), (0, 0, 3 / std, 0)]
    assert returns.rewards == [pytest.approx(row) for row in expected]


def test_dense_rewards_are_scaled_and_stay_where_they_are() -> None:
    returns = read((1, 1), (0, 6), (-1, 2))
    # returns 2, 6, 1: mean 3, squared distances 1 + 9 + 4 over 2
    std = math.sqrt(7)
    assert (returns.mean, returns.std) == (3, pytest.approx(std))
    expected = [(0, 1 / std, 1 / std, 0), (0, 0, 6 / std, 0), (0, -1 / std, 2 / std, 0)]
    assert returns.rewards == [pytest.approx(row) for row in expected]


def test_rewards_are_unchanged_if_standardising_is_off(capsys: Any) -> None:
    assert read((0, 1), (0, 3), standardise=False) == Returns([(0, 0, 1, 0), (0, 0, 3, 0)], 2.0, math.sqrt(2))
    assert read((0, 3), standardise=False).rewards == [(0, 0, 3, 0)]
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("rewards", [[(0, 0.1)] * 3, [(0, 0.1)], [(1, 0.5), (0.5, 1)]], ids=["equal", "one", "dense"])
def test_equal_returns_are_not_divided_by_their_deviation(rewards: list[tuple[float, float]], capsys: Any) -> None:
    returns = read(*rewards)
    assert [row[1:3] for row in returns.rewards] == rewards
    assert returns.std == 0
    said = capsys.readouterr().err
    assert said.count("all returns are equal") == 1
    assert f"samples={len(rewards)}" in said


def test_returns_that_differ_only_by_rounding_count_as_equal() -> None:
    returns = read((0, 0.1 + 0.2), (0, 0.3), (0, 0.3))
    assert returns.std == 0
    assert [row[2] for row in returns.rewards] == [0.1 + 0.2, 0.3, 0.3]
    assert read((0, 1e6), (0, 1e6 + 0.01)).std == pytest.approx(0.01 / math.sqrt(2), rel=1e-6)
