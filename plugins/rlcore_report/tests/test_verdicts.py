"""Laws of the health verdicts: each changes its level at its threshold, and is silent without enough metrics."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import pytest

from rlcore_report.series import Series
from rlcore_report.verdicts import (
    CHECKS,
    Verdict,
    data_order,
    entropy,
    kl_growth,
    kl_sign,
    learning_rate,
    losses,
    ratio,
    second_reward,
    truncation,
    value_function,
    verdicts,
    zero_spread,
)


def series(values: Sequence[float]) -> Series:
    return Series(np.arange(1, len(values) + 1), np.array(values, dtype=float))


def ramp(early: float, late: float, count: int = 20) -> list[float]:
    return [early] * (count // 2) + [late] * (count // 2)


UP = [0.0, 0.1, 0.0, 0.1] * 2 + [1.0, 1.1, 1.0, 1.1] * 3
STILL = [0.5, 0.6] * 10
DOWN = UP[::-1]
CASES: list[tuple[Callable[..., Verdict | None], dict[str, Sequence[float]], str]] = [
    (kl_sign, {"kl/mean": ramp(1, -0.09)}, "good"),
    (kl_sign, {"kl/mean": ramp(1, -0.11)}, "bad"),
    (kl_growth, {"kl/mean": ramp(1, 9.9)}, "good"),
    (kl_growth, {"kl/mean": ramp(3, 14)}, "good"),
    (kl_growth, {"kl/mean": ramp(2, 10.1)}, "bad"),
    (ratio, {"policy/ratio_mean": [1.09]}, "good"),
    (ratio, {"policy/ratio_mean": [0.89]}, "bad"),
    (ratio, {"policy/ratio_mean_trained": [0.89]}, "bad"),
    (ratio, {"policy/ratio_mean": [1.11]}, "bad"),
    (zero_spread, {"group/zero_spread_fraction": ramp(1, 0.5)}, "good"),
    (zero_spread, {"group/zero_spread_fraction": ramp(0, 0.51)}, "warning"),
    (zero_spread, {"group/zero_spread_fraction": ramp(0, 0.91)}, "bad"),
    (truncation, {"response/truncated_fraction": ramp(1, 0.5)}, "good"),
    (truncation, {"response/truncated_fraction": ramp(0, 0.95)}, "warning"),
    (truncation, {"response/truncated_fraction": ramp(0, 0.96)}, "bad"),
    (entropy, {"policy/entropy": ramp(0.9, 0.091)}, "good"),
    (entropy, {"policy/entropy": ramp(2, 0.11)}, "good"),
    (entropy, {"policy/entropy": ramp(1, 0.09)}, "warning"),
    (value_function, {"value/explained_variance": ramp(-1, 0.06)}, "good"),
    (value_function, {"value/explained_variance": ramp(0.9, 0.04)}, "warning"),
    (second_reward, {"reward/mean": UP, "reward/honesty": STILL}, "good"),
    (second_reward, {"reward/mean": STILL, "reward/honesty": DOWN}, "good"),
    (second_reward, {"reward/mean": UP, "reward/honesty": DOWN}, "bad"),
    (second_reward, {"reward/mean": UP, "eval/reward/mean@beta=1": [1.0, 0.9, 0.5, 0.45, 0.1]}, "bad"),
    (learning_rate, {"lr": [0.0, *[1e-4] * 8, 0.0]}, "bad"),
    (learning_rate, {"lr": [1e-4] * 4 + [0.0]}, "good"),
    (learning_rate, {"lr": [0.0, *[1e-4] * 3, 0.0]}, "bad"),
    (learning_rate, {"lr": [*[1e-4] * 18, 0.0, 0.0]}, "good"),
    (data_order, {"progress/epoch": [0.1, 0.2, 0.3, 0.4, 0.5]}, "good"),
    (data_order, {"progress/epoch": [0.1] * 5}, "bad"),
    (losses, {"loss/total": [1.0, 2.0]}, "good"),
    (losses, {"loss/total": [1.0, math.nan]}, "bad"),
]


@pytest.mark.parametrize(("check", "metrics", "level"), CASES, ids=[f"{c.__name__}-{k}" for c, _, k in CASES])
def test_a_verdict_has_the_level_of_its_threshold(
    check: Callable[..., Verdict | None], metrics: dict[str, Sequence[float]], level: str
) -> None:
    found = check({name: series(values) for name, values in metrics.items()})
    assert found is not None
    assert found.level == level
    assert bool(found.advice) == (level != "good")


def test_every_check_is_tested_on_both_sides_of_its_threshold() -> None:
    for check in (*CHECKS, data_order):
        assert {level == "good" for each, _, level in CASES if each is check} == {True, False}, check.__name__


@pytest.mark.parametrize("check", [*CHECKS, data_order], ids=lambda check: check.__name__)
def test_a_check_without_its_metrics_gives_no_verdict(check: Callable[..., Verdict | None]) -> None:
    names = {name for each, metrics, _ in CASES if each is check for name in metrics}
    assert check({}) is None
    assert check({name: series([]) for name in names}) is None
    assert check({name: series([math.nan] * 9) for name in names if not name.startswith("loss")}) is None


ONE_IS_ENOUGH = {ratio, zero_spread, truncation, learning_rate, losses}


@pytest.mark.parametrize("check", [*CHECKS, data_order], ids=lambda check: check.__name__)
def test_a_run_of_fewer_than_five_steps_is_judged_only_where_one_value_is_enough(
    check: Callable[..., Verdict | None],
) -> None:
    _, metrics, _ = next(case for case in CASES if case[0] is check)
    for count in range(1, 7):
        found = check({name: series(values[:count]) for name, values in metrics.items()})
        assert (found is not None) == (check in ONE_IS_ENOUGH or count >= 5), count


def test_a_fifth_of_a_short_run_has_at_least_one_value() -> None:
    for count in range(1, 16):
        found, size = series(range(count)), max(1, count // 5)
        assert found.early.tolist() == list(range(size))
        assert found.late.tolist() == list(range(count - size, count))


def test_a_shift_is_counted_in_standard_errors_of_the_difference_of_means() -> None:
    # of ten values two are early, with mean 1 and variance 2, and two late: the standard error is sqrt(2/2 + 2/2)
    for rise, word in ((4.2, "+3.0"), (4.3, "+3.0")):
        metrics = {"reward/mean": series([0, 2, *[1] * 6, rise, rise + 2]), "reward/other": series(STILL)}
        found = second_reward(metrics)
        assert found is not None
        assert f"moved by {word} standard errors" in found.evidence
        metrics["reward/other"] = series(DOWN)
        found = second_reward(metrics)
        assert found is not None
        assert found.level == ("bad" if rise > 3 * math.sqrt(2) else "good")
    # of five values one is early and one late: variances are half the mean square of differences, 19 / 4 / 2 each
    short = {"reward/mean": series([0, 1, 0, 1, 5]), "reward/other": series(STILL)}
    found = second_reward(short)
    assert found is not None
    assert f"moved by {5 / math.sqrt(2 * 19 / 8):+.1f} standard errors" in found.evidence


def test_equal_prompts_in_every_step_are_reported_unless_each_step_is_a_pass() -> None:
    moving, passes = (series(np.arange(6) * size) for size in (0.2, 1.0))
    same, other = [("a", "b")] * 6, [("a", "b"), *[("b", "a")] * 5]
    cases = [
        ({"progress/epoch": moving}, same, "bad"), ({"progress/epoch": moving}, other, "good"),
        ({"progress/epoch": moving}, same[:4], "good"), ({"progress/epoch": passes}, same, "good"),
        ({}, same, "bad"), ({}, other, "good"),
    ]  # fmt: skip
    for metrics, prompts, level in cases:
        (found,) = verdicts(metrics, prompts)
        assert found.level == level
    assert verdicts({}, [("a",)] * 9) == []  # there may be a single prompt


def test_verdicts_are_sorted_worst_first() -> None:
    found = verdicts(
        {"policy/ratio_mean": series([1.0]), "lr": series([0.0] * 9), "policy/entropy": series(ramp(1, 0))}
    )
    assert [each.level for each in found] == ["bad", "warning", "good"]
