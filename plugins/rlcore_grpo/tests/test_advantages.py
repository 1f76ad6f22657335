from __future__ import annotations

import math
import statistics

import pytest
import torch

from rlcore_grpo.advantages import Scores, compare, compare_each, level, overlong, weighted_sum


def numbers(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def scores(*values: float | None) -> Scores:
    known = torch.tensor([value is not None for value in values])
    return Scores.of(numbers(*(value or 0.0 for value in values)), known)


def columns_of(*rows: tuple[float | None, ...]) -> Scores:
    """Return scores with one column for each reward function."""
    parts = [scores(*column) for column in zip(*rows, strict=True)]
    return Scores(torch.stack([each.values for each in parts], 1), torch.stack([each.known for each in parts], 1))


def test_a_score_is_compared_with_its_group_in_units_of_its_deviation() -> None:
    # Groups (1, 3) and (0, 6): means 2 and 3, unbiased deviations sqrt(2) and sqrt(18).
    groups = compare(scores(1, 3, 0, 6), 2, baseline="mean", scale="group")
    first, second = 1 / (math.sqrt(2) + 1e-4), 3 / (math.sqrt(18) + 1e-4)
    assert groups.advantages.tolist() == pytest.approx([-first, first, -second, second], abs=1e-12)
    assert groups.deviation.tolist() == pytest.approx([math.sqrt(2), math.sqrt(18)])
    assert groups.has_spread.tolist() == [True, True]


def test_without_a_scale_an_advantage_is_the_difference_from_the_group_mean() -> None:
    assert compare(scores(1, 3, 0, 6), 2, baseline="mean", scale="none").advantages.tolist() == [-1, 1, -3, 3]


def test_the_scale_of_a_batch_is_the_deviation_of_all_scores() -> None:
    # (1, 3, 0, 6): mean 2.5, squares 2.25 + .25 + 6.25 + 12.25 = 21, divided by 3: 7.
    seen = compare(scores(1, 3, 0, 6), 2, baseline="mean", scale="batch").advantages
    assert seen.tolist() == pytest.approx([x / (math.sqrt(7) + 1e-4) for x in (-1, 1, -3, 3)], abs=1e-12)


def test_leaving_one_out_compares_with_the_mean_of_the_others() -> None:
    # 1: others (3 + 8) / 2 = 5.5. 3: (1 + 8) / 2 = 4.5. 8: (1 + 3) / 2 = 2.
    assert compare(scores(1, 3, 8), 3, baseline="loo", scale="none").advantages.tolist() == [-4.5, -1.5, 6.0]


def test_leaving_one_out_divides_by_the_deviation_of_the_whole_group() -> None:
    """The deviation of the others is 0 for the one response that differs, and would make its advantage explode.

    NeMo-RL #1518 and #4158: advantages of a million.
    """
    seen = compare(scores(0, 0, 0, 1), 4, baseline="loo", scale="group").advantages
    deviation = statistics.stdev([0, 0, 0, 1]) + 1e-4
    assert seen.tolist() == pytest.approx([x / deviation for x in (-1 / 3, -1 / 3, -1 / 3, 1)], abs=1e-12)


@pytest.mark.parametrize("score", [0.95, 0.1, 1e8, -3.7])
@pytest.mark.parametrize("size", [2, 7, 8])
@pytest.mark.parametrize("scale", ["group", "batch", "none"])
def test_equal_scores_have_advantages_of_exactly_zero(score: float, size: int, scale: str) -> None:
    """Rounding gives 7 scores of 0.95 a deviation of 6e-8, and advantages of 6e-4, in float32."""
    groups = compare(scores(*[score] * size), size, baseline="loo", scale=scale)
    assert groups.advantages.tolist() == [0.0] * size
    assert groups.has_spread.tolist() == [False]


def test_small_differences_of_large_scores_are_kept() -> None:
    near = compare(scores(1e8, 1e8 + 1), 2, baseline="mean", scale="group").advantages
    assert near.tolist() == compare(scores(0, 1), 2, baseline="mean", scale="group").advantages.tolist()


def test_responses_without_a_score_take_no_part() -> None:
    """verl #6452: a rejected response shifts the baseline of its siblings."""
    seen = compare(scores(1, None, 3, 5), 4, baseline="mean", scale="none")
    assert seen.advantages.tolist() == [-2, 0, 0, 2]
    loo = compare(scores(1, None, 3, 8), 4, baseline="loo", scale="none")
    assert loo.advantages.tolist() == [-4.5, 0, -1.5, 6.0]


@pytest.mark.parametrize("baseline", ["mean", "loo"])
@pytest.mark.parametrize("group", [(None, 4, None), (None, None, None)])
def test_a_single_score_of_a_group_has_an_advantage_of_zero(baseline: str, group: tuple[float | None, ...]) -> None:
    """verl #7581: one variant keeps the raw reward of a singleton, the other gives 0."""
    groups = compare(scores(*group), 3, baseline=baseline, scale="group")
    assert groups.advantages.tolist() == [0.0] * 3
    assert groups.has_spread.tolist() == [False]
    assert groups.deviation.tolist() == [0.0]


def test_a_constant_added_to_all_scores_of_a_group_cancels() -> None:
    values = torch.randn(12, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    shift = torch.tensor([5.0, -2.0, 7.0], dtype=torch.float64).repeat_interleave(4)
    everywhere = torch.ones(12, dtype=torch.bool)
    for baseline in ("mean", "loo"):
        plain = compare(Scores(values, everywhere), 4, baseline=baseline, scale="group").advantages
        assert torch.allclose(
            compare(Scores(values + shift, everywhere), 4, baseline=baseline, scale="group").advantages,
            plain,
            atol=1e-12,
        )


def test_a_group_does_not_depend_on_the_others_or_on_its_place() -> None:
    values = torch.randn(12, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    plain = compare(scores(*values.tolist()), 4, baseline="mean", scale="group").advantages
    order = torch.tensor([8, 9, 10, 11, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11])  # the last group first, and twice
    moved = compare(scores(*values[order].tolist()), 4, baseline="mean", scale="group").advantages
    assert moved.tolist() == plain[order].tolist()


def test_functions_are_compared_by_themselves_and_then_summed() -> None:
    columns = columns_of((1.0, 0.0), (3.0, 200.0), (2.0, 100.0), (2.0, 100.0))
    seen = compare_each(columns, numbers(1.0, 0.5), torch.zeros(4), 2, baseline="mean").advantages
    one, two = 1 / (math.sqrt(2) + 1e-4), 100 / (math.sqrt(20000) + 1e-4)
    total = [-(one + two / 2), one + two / 2, 0.0, 0.0]
    deviation = statistics.stdev(total) + 1e-4
    assert seen.tolist() == pytest.approx([x / deviation for x in total], abs=1e-12)


@pytest.mark.parametrize(("baseline", "factor"), [("mean", 1.0), ("loo", 2.0)])
def test_penalties_are_added_to_the_sum_of_compared_functions(baseline: str, factor: float) -> None:
    """The larger a penalty is, the more of the advantages is its own; a column of its own would cancel its size.

    In groups of 2, the others' mean is twice as far as the group's.
    """
    columns, one = columns_of((1,), (3,), (2,), (2,)), 1 / (math.sqrt(2) + 1e-4)
    for size in (0.01, 10.0):
        added = numbers(0, -size, 0, -size)
        seen = compare_each(columns, numbers(1), added, 2, baseline=baseline).advantages
        total = [factor * x for x in (-one + size / 2, one - size / 2, size / 2, -size / 2)]
        deviation = statistics.stdev(total) + 1e-4
        assert seen.tolist() == pytest.approx([x / deviation for x in total], abs=1e-12)


def test_numbers_that_differ_by_rounding_are_the_same_in_their_group() -> None:
    seen = level(scores(1.0, 1.0 + 1e-6, 2.0, 2.5, None, 3.0), 2, tolerance=numbers(1e-5, 1e-5, 1e-5))
    assert seen.values.tolist() == [1.0, 1.0, 2.0, 2.5, 0.0, 3.0]
    assert seen.known.tolist() == [True, True, True, True, False, True]


def test_a_function_that_does_not_apply_is_left_out_of_the_sum() -> None:
    seen = weighted_sum(columns_of((1.0, None), (2.0, 3.0), (None, None)), numbers(2.0, 10.0))
    assert seen.values.tolist() == [2.0, 34.0, 0.0]
    assert seen.known.tolist() == [True, True, False]


@pytest.mark.parametrize("scale", ["group", "batch", "none"])
@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_score_of_nan_does_not_count_as_a_missing_score(bad: float, scale: str) -> None:
    """It makes advantages of its group NaN, so that nothing is learned from it without a word."""
    groups = compare(scores(1, bad, 3, 5), 4, baseline="mean", scale=scale)
    assert bool(groups.advantages.isnan().any())
    assert groups.has_spread.tolist() == [True]
    known = level(scores(1, bad, 3, 5), 2, tolerance=numbers(1e-5, 1e-5))
    assert not bool(known.values[:2].isfinite().all())
    summed = weighted_sum(columns_of((1.0, None), (bad, 3.0)), numbers(1.0, 1.0))
    assert summed.known.tolist() == [True, True]
    assert not bool(summed.values[1].isfinite())
    each = compare_each(columns_of((1.0,), (bad,)), numbers(1.0), numbers(0.0, 0.0), 2, baseline="mean")
    assert bool(each.advantages.isnan().any())


@pytest.mark.parametrize("buffer", [4, 0.4])
def test_the_penalty_of_long_responses_grows_over_the_buffer(buffer: float) -> None:
    seen = overlong(torch.tensor([3, 6, 7, 9, 10]), longest=10, buffer=buffer, penalty=2.0)
    assert seen.tolist() == pytest.approx([0.0, 0.0, -0.5, -1.5, -2.0])
