"""Laws of the health verdicts: each changes its level at its threshold, and is silent without enough metrics."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from rlcore_report.health import judged_run as causes
from rlcore_report.health import large_steps, loss_rules, reward_rules, step_size
from rlcore_report.health import loss_rules as update_rules
from rlcore_report.health import reward_rules as sampling_rules
from rlcore_report.health.judged_run import JudgedRun, Verdict, first_lasting, first_step, shift
from rlcore_report.health.step_size import step_too_small
from rlcore_report.metric_groups import Series
from rlcore_report.verdicts import RULES, verdicts

Rule = Callable[[JudgedRun], Verdict | None]
Given = Mapping[str, Sequence[float]]


def series(values: Sequence[float], name: str = "") -> Series:
    """Return a metric of each step from 1 on; of an evaluation, of every tenth step from 0 on."""
    steps = 10 * np.arange(len(values)) if name.startswith("eval/") else np.arange(1, len(values) + 1)
    return Series(steps, np.array(values, dtype=float))


def judged(given: Given, config: Mapping[str, Any] | None = None) -> JudgedRun:
    return JudgedRun({name: series(values, name) for name, values in given.items()}, config or {})


def ramp(first: float, late: float, count: int = 20) -> list[float]:
    """Return one value for the first half of the steps, and another one for the second."""
    return [first] * (count // 2) + [late] * (count // 2)


UP = [0.0, 0.1, 0.0, 0.1] * 2 + [1.0, 1.1, 1.0, 1.1] * 3
STILL = [0.5, 0.6] * 10
DOWN = UP[::-1]
FALLING = [2.0 - 0.1 * i for i in range(20)]
SOLVED = {"reward/mean": ramp(0.1, 0.99), "reward/max": [1.0] * 20}
HALF = {"reward/mean": ramp(0.1, 0.5), "reward/max": [1.0] * 20}
CASES: list[tuple[Rule, Given, str]] = [
    (loss_rules.finite, {"loss/total": [1.0, 2.0]}, "good"),
    (loss_rules.finite, {"loss/total": [1.0, math.nan]}, "bad"),
    (sampling_rules.other_policy, {"kl/mean": ramp(1, -0.09)}, "good"),
    (sampling_rules.other_policy, {"kl/mean": ramp(1, -0.11)}, "bad"),
    (sampling_rules.other_policy, {"is/logprob_gap": ramp(0, 0.09)}, "good"),
    (sampling_rules.other_policy, {"is/logprob_gap": ramp(0, 0.11)}, "bad"),
    (sampling_rules.other_policy, {"policy/ratio_mean": [0.89, 0.88, 0.9, 0.87, 0.89]}, "bad"),
    (sampling_rules.other_policy, {"policy/ratio_mean": [0.89, 1.3, 0.9, 0.6, 0.89]}, "good"),
    (reward_rules.constant, {"reward/mean": [0.3] * 9, "reward/std": [0.0] * 9}, "bad"),
    (reward_rules.constant, {"reward/mean": [0.3] * 9, "reward/std": [0.0] * 8 + [0.1]}, "good"),
    (reward_rules.constant, {"reward/mean": [0.3] * 8 + [0.31]}, "good"),
    (update_rules.learning_rate, {"lr": [0.0, *[1e-4] * 8, 0.0]}, "bad"),
    (update_rules.learning_rate, {"lr": [1e-4] * 4 + [0.0]}, "good"),
    (update_rules.learning_rate, {"lr": [0.0, *[1e-4] * 3, 0.0]}, "bad"),
    (update_rules.learning_rate, {"lr": [*[1e-4] * 18, 0.0, 0.0]}, "good"),
    (loss_rules.wrong_mask, {"loss/total": FALLING, "eval/loss": [1.4, 1.0]}, "good"),
    (loss_rules.wrong_mask, {"loss/total": FALLING, "eval/loss": [1.3, 1.0]}, "warning"),
    (loss_rules.wrong_mask, {"loss/total": FALLING, "eval/loss": [1.3, 1.1]}, "bad"),
    (large_steps.step_too_large, {"policy/approx_kl": ramp(0.19, 0.01)}, "good"),
    (large_steps.step_too_large, {"policy/approx_kl": ramp(0.21, 0.01)}, "bad"),
    (large_steps.step_too_large, {"policy/approx_kl_trained": ramp(0.01, 0.21)}, "bad"),
    (large_steps.step_too_large, {"policy/clip_fraction": ramp(0.49, 0.1)}, "good"),
    (large_steps.step_too_large, {"policy/clip_fraction": ramp(0.51, 0.1)}, "bad"),
    (large_steps.step_too_large,
     {"policy/clip_low_fraction": ramp(0.3, 0.1), "policy/clip_high_fraction": ramp(0.25, 0.1)}, "bad"),
    (large_steps.step_too_large, {"policy/ratio_mean": ramp(1.09, 0.91)}, "good"),
    (large_steps.step_too_large, {"policy/ratio_mean": ramp(1.0, 0.89)}, "bad"),
    (large_steps.step_too_large, {"kl/mean": [0, 1, 2, 3, 11, *[50] * 45]}, "bad"),
    (large_steps.step_too_large, {"kl/mean": [0, 1, 2, 3, 4, 11, *[50] * 44]}, "good"),
    (large_steps.step_too_large,
     {"kl/mean": [0, 1, 2, 3, *[11] * 46], "response/length_mean": [30] * 50}, "good"),
    (large_steps.step_too_large, {"loss/total": [1.0, 1.1, *[0.5] * 18]}, "good"),
    (large_steps.step_too_large, {"loss/total": [1.0, 1.2, *[0.5] * 18]}, "bad"),
    (large_steps.step_too_large, {"grad/norm": ramp(1, 19)}, "good"),
    (large_steps.step_too_large, {"grad/norm": ramp(1, 21)}, "bad"),
    (large_steps.step_too_large,
     {"reward/mean": ramp(0, 2.9), "reward/std": [1.0] * 20, "reward/accuracy": [0.7] * 20}, "good"),
    (large_steps.step_too_large,
     {"reward/mean": ramp(0, 3.1), "reward/std": [1.0] * 20, "reward/accuracy": [0.7] * 20}, "bad"),
    (loss_rules.chosen_answers, {"logps/chosen": ramp(-14, -20)}, "good"),
    (loss_rules.chosen_answers, {"logps/chosen": ramp(-14, -22)}, "bad"),
    (loss_rules.chosen_answers, {"logps/chosen": ramp(-4, -8.9)}, "good"),
    (update_rules.gradient, {"grad/norm": ramp(0, 1)}, "good"),
    (update_rules.gradient, {"grad/norm": [0.0] * 11 + [1.0] * 9}, "bad"),
    (step_too_small, {"policy/approx_kl": [2e-5] * 20}, "bad"),
    (step_too_small, {"policy/approx_kl": [3e-5] * 20}, "good"),
    (step_too_small, {"loss/total": STILL, "eval/loss": [0.5, 0.4999]}, "bad"),
    (step_too_small, {"loss/total": STILL, "eval/loss": [0.5, 0.49]}, "good"),
    (step_too_small, {"loss/total": FALLING, "eval/loss": [2.0, 2.0]}, "good"),
    (step_too_small, {"loss/total": [2.0] * 20}, "bad"),
    (loss_rules.labels, {"eval/reward/accuracy": [0.5, 0.61]}, "good"),
    (loss_rules.labels, {"eval/reward/accuracy": [0.5, 0.59]}, "bad"),
    (loss_rules.labels, {"rewards/accuracies": [0.29] * 6}, "bad"),
    (reward_rules.disagreement, {"reward/mean": UP, "reward/honesty": STILL}, "good"),
    (reward_rules.disagreement, {"reward/mean": STILL, "reward/honesty": DOWN}, "good"),
    (reward_rules.disagreement, {"reward/mean": UP, "reward/honesty": DOWN}, "bad"),
    (reward_rules.disagreement, {"reward/mean": UP, "eval/reward/mean@beta=1": [1.0, 0.9, 0.5, 0.45, 0.1]}, "bad"),
    (reward_rules.disagreement, {"reward/mean": UP, "eval/reward/mean": [1.0, 0.6]}, "bad"),
    (reward_rules.disagreement, {"reward/mean": UP, "eval/reward/mean": [1.0, 0.7]}, "good"),
    (reward_rules.fallen, {"reward/mean": UP}, "good"),
    (reward_rules.fallen, {"reward/mean": DOWN}, "bad"),
    (reward_rules.fallen, {"reward/mean": [0.0, 0.1] * 5 + [1.0, 1.1] * 5 + [0.2, 0.3] * 5}, "bad"),
    (sampling_rules.length, {"response/length_mean": ramp(9, 1.6)}, "good"),
    (sampling_rules.length, {"response/length_mean": ramp(9, 1.4)}, "bad"),
    (sampling_rules.length, {"response/length_mean": ramp(2, 1)}, "good"),
    (sampling_rules.truncation, {"response/truncated_fraction": ramp(1, 0.5)}, "good"),
    (sampling_rules.truncation, {"response/truncated_fraction": ramp(0, 0.95)}, "warning"),
    (sampling_rules.truncation, {"response/truncated_fraction": ramp(0, 0.96)}, "bad"),
    (update_rules.skipped, {"grad/skipped": [1.0] * 2 + [0.0] * 18}, "good"),
    (update_rules.skipped, {"grad/skipped": [1.0] * 3 + [0.0] * 17}, "warning"),
    (update_rules.skipped, {"policy/skipped": [1.0] * 11 + [0.0] * 9}, "bad"),
    (update_rules.skipped,
     {"policy/skipped": [0.0] * 9 + [1.0] * 11, "group/zero_spread_fraction": ramp(0, 1)}, "good"),
    (reward_rules.entropy, {"policy/entropy": ramp(0.9, 0.091)}, "good"),
    (reward_rules.entropy, {"policy/entropy": ramp(2, 0.11)}, "good"),
    (reward_rules.entropy, {"policy/entropy": ramp(1, 0.09)}, "bad"),
    (reward_rules.entropy, {"policy/entropy": ramp(1, 0.09), **SOLVED}, "good"),
    (reward_rules.entropy, {"policy/entropy": ramp(1, 0.09), **HALF}, "bad"),
    (reward_rules.entropy, {"policy/entropy": ramp(1.5, 3.2)}, "bad"),
    (reward_rules.entropy, {"policy/entropy": ramp(1.5, 2.4)}, "good"),
    (reward_rules.entropy, {"policy/entropy": ramp(0.3, 3.2), "reward/mean": UP}, "good"),
    (update_rules.gradient, {"grad/norm": [1e6] * 20}, "bad"),
    (update_rules.gradient, {"grad/norm": [2e3] * 20}, "warning"),
    (update_rules.gradient, {"grad/norm": [900.0] * 20}, "good"),
    (reward_rules.disagreement, {"reward/mean": UP, "eval/correct": [0.264, 0.1, 0.0]}, "warning"),
    (reward_rules.disagreement, {"reward/mean": UP, "eval/correct/mean": [0.264, 0.2, 0.1]}, "good"),
    (reward_rules.disagreement,
     {"reward/mean": UP, "reward/honesty": STILL, "eval/loss": [2.0, 0.1], "eval/time_s": [9.0, 0.1]}, "good"),
    (large_steps.kl_growth, {"kl/mean": ramp(0, 9.9)}, "good"),
    (large_steps.kl_growth, {"kl/mean": ramp(0, 10.1)}, "bad"),
    (large_steps.kl_growth, {"kl/mean": ramp(0, 10.1), **HALF}, "good"),
    (sampling_rules.zero_spread, {"group/zero_spread_fraction": ramp(1, 0.5)}, "good"),
    (sampling_rules.zero_spread, {"group/zero_spread_fraction": ramp(0, 0.51)}, "warning"),
    (sampling_rules.zero_spread, {"group/zero_spread_fraction": ramp(0, 0.91)}, "bad"),
    (sampling_rules.zero_spread, {"group/zero_spread_fraction": ramp(0, 1), **SOLVED}, "good"),
    (sampling_rules.zero_spread, {"group/zero_spread_fraction": ramp(0, 1), **HALF}, "bad"),
    (loss_rules.spike, {"loss/total": [2.0, *[1.0] * 9, 1.4, *[1.0] * 9]}, "good"),
    (loss_rules.spike, {"loss/total": [2.0, *[1.0] * 9, 1.6, *[1.0] * 9]}, "warning"),
    (loss_rules.spike, {"loss/total": [2.0, *[1.0] * 9, *[1.6] * 10]}, "bad"),
    (loss_rules.risen, {"loss/total": [2.0, *np.linspace(1, 1.7, 19)]}, "good"),
    (loss_rules.risen, {"loss/total": [2.0, *np.linspace(1, 1.8, 19)]}, "bad"),
    (loss_rules.risen, {"loss/total": [2.0, *np.linspace(1, 2, 9), *np.linspace(2, 1, 10)]}, "good"),
    (loss_rules.evaluation_loss, {"loss/total": FALLING, "eval/loss": [2.0, 1.0, 1.09]}, "good"),
    (loss_rules.evaluation_loss, {"loss/total": FALLING, "eval/loss": [2.0, 1.0, 1.11]}, "warning"),
    (loss_rules.evaluation_loss, {"loss/total": FALLING, "eval/loss": [2.0, 2.3]}, "bad"),
    (loss_rules.evaluation_loss,
     {"loss/total": FALLING, "eval/loss": [0.7, 0.6, 0.9], "eval/reward/accuracy": [0.5, 0.7, 0.8]}, "good"),
    (reward_rules.never_improved, {"reward/mean": STILL, "kl/mean": ramp(0, 0.2)}, "warning"),
    (reward_rules.never_improved, {"reward/mean": STILL, "kl/mean": ramp(0, 0.05)}, "good"),
    (reward_rules.never_improved, {"reward/mean": UP, "kl/mean": ramp(0, 0.2)}, "good"),
    (reward_rules.value_function, {"value/explained_variance": ramp(-1, 0.06)}, "good"),
    (reward_rules.value_function, {"value/explained_variance": [0.04] * 20}, "warning"),
    (reward_rules.value_function,
     {"value/explained_variance": [-0.5] * 20, "reward/std": [1.0, 1.0, *[0.24] * 18]}, "good"),
    (update_rules.data_order, {"progress/epoch": [0.1, 0.2, 0.3, 0.4, 0.5]}, "good"),
    (update_rules.data_order, {"progress/epoch": [0.1] * 5}, "bad"),
]  # fmt: skip
NAMES = {rule: rule.__name__ for rule in RULES}


@pytest.mark.slow
@pytest.mark.parametrize(("rule", "given", "level"), CASES, ids=[f"{r.__name__}-{k}" for r, _, k in CASES])
def test_a_verdict_has_the_level_of_its_threshold(rule: Rule, given: Given, level: str) -> None:
    found = rule(judged(given))
    assert found is not None
    assert found.level == level, found
    assert bool(found.advice) == bool(found.cause) == (level != "good")


def test_every_rule_is_tested_on_both_sides_of_its_threshold() -> None:
    for rule in RULES:
        assert {level == "good" for each, _, level in CASES if each is rule} == {True, False}, NAMES[rule]


def test_every_verdict_that_is_not_good_names_a_known_cause_a_step_and_a_change() -> None:
    known = {value for name, value in vars(causes).items() if name.isupper() and isinstance(value, str)}
    for rule, given, level in CASES:
        found = rule(judged(given))
        if level != "good" and found is not None:
            assert found.cause in known
            assert found.step is not None, NAMES[rule]
            assert bool(found.option) == bool(found.value)
            assert found.option or rule in {update_rules.gradient, update_rules.data_order, step_too_small}


@pytest.mark.parametrize("rule", RULES, ids=NAMES.values())
def test_a_rule_without_its_metrics_gives_no_verdict(rule: Rule) -> None:
    names = {name for each, given, _ in CASES if each is rule for name in given}
    assert rule(JudgedRun({})) is None
    assert rule(judged({name: [] for name in names})) is None
    unknown = {name: [math.nan] * 9 for name in names if not name.startswith("loss")}
    assert rule(judged(unknown)) is None


ONE_IS_ENOUGH = {
    sampling_rules.zero_spread, sampling_rules.truncation, update_rules.learning_rate, update_rules.skipped,
    loss_rules.finite,
}  # fmt: skip


@pytest.mark.parametrize("rule", RULES, ids=NAMES.values())
def test_a_run_of_two_steps_is_judged_only_where_one_value_is_enough(rule: Rule) -> None:
    for each, given, _ in CASES:
        if each is rule and not any(name.startswith("eval/") for name in given):
            found = rule(judged({name: values[:2] for name, values in given.items()}))
            assert (found is not None) == (rule in ONE_IS_ENOUGH)


def test_a_collapse_in_the_first_tenth_is_judged_against_the_first_step() -> None:
    kl = [-3e-9, *np.geomspace(0.05, 50, 10), *[50.0] * 99]
    found = verdicts({"kl/mean": series(kl)})
    assert found[0].level == "bad"
    assert found[0].cause == causes.TOO_LARGE
    assert found[0].step == next(i + 1 for i, value in enumerate(kl) if value > 10)


def test_a_fifth_of_a_short_run_has_at_least_one_value() -> None:
    for count in range(1, 16):
        found, size = series(range(count)), max(1, count // 5)
        assert found.late.tolist() == list(range(count - size, count))


def test_a_shift_is_counted_in_standard_errors_of_the_difference_of_means() -> None:
    # the squares of the nine differences are 4, 1, 0, ..., 9, 4, and the variance of one value is half their mean
    values = [0.0, 2.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 4.0, 6.0]
    square = (4 + 1 + 9 + 4) / 9 / 2
    assert shift(series(values)) == pytest.approx(5.0 / math.sqrt(square * (1 / 1 + 1 / 2)))
    assert shift(series([1.0] * 9)) == 0
    assert shift(series([1.0, *[2.0] * 8])) == pytest.approx(1 / math.sqrt(1 / 16 * 2))  # one late value of eight


def test_the_first_step_of_a_condition_and_the_first_from_which_it_lasts_differ() -> None:
    found = series([1, 5, 1, 5, 5])
    assert first_step(found, lambda values: values > 3) == 2
    assert first_lasting(found, lambda values: values > 3) == 4
    assert first_lasting(found, lambda values: values < 3) is None


def test_a_rate_is_raised_by_ten_at_most_and_only_where_the_change_of_a_step_is_measured() -> None:
    for count, kl in ((100, 1e-10), (50, 4e-8), (20, 2e-5)):
        small = step_too_small(judged({"policy/approx_kl": [kl] * count}, {"trainer": {"optimizer": {"lr": 1e-6}}}))
        assert small is not None
        assert (small.option, small.value) == ("trainer.optimizer.lr", "1e-05")
    noise = (2.0 + np.random.default_rng(0).normal(0, 0.001, 60)).tolist()  # its line has no slope beyond its error
    unknown = step_too_small(judged({"loss/total": noise}, {"trainer": {"optimizer": {"lr": 1e-3}}}))
    assert unknown is not None
    assert (unknown.level, unknown.option, unknown.value) == ("bad", "", "")


def test_a_planned_length_counts_and_not_the_steps_that_are_done() -> None:
    given = {"policy/approx_kl": [2e-5] * 20}
    levels = []
    for steps in (20, 40):
        found = step_too_small(judged(given, {"run": {"steps": steps}}))
        levels.append(found.level if found else None)
    assert levels == ["bad", "good"]


def test_equal_weights_give_no_approx_kl_so_that_the_reward_is_extrapolated() -> None:
    numbers = np.random.default_rng(0)
    reward = 0.5 + numbers.normal(0, 0.03, 60)
    given = {
        "policy/approx_kl_trained": [8e-14] * 60, "reward/mean": reward.tolist(), "reward/max": [1.0] * 60,
        "policy/entropy": (1.5 + numbers.normal(0, 0.03, 60)).tolist(),
    }  # fmt: skip
    found = step_too_small(judged(given, {"trainer": {"optimizer": {"lr": 1e-6}}}))
    assert found is not None
    assert (found.level, found.value) == ("bad", "")
    rising = {**given, "reward/mean": (reward + np.linspace(0, 0.4, 60)).tolist()}
    found = step_too_small(judged(rising))
    assert found is not None
    assert found.level == "good"


def test_steps_are_judged_from_the_tenth_on() -> None:
    tenth = step_size.LEAST_ROUNDS
    assert step_too_small(judged({"policy/approx_kl": [1e-9] * (tenth - 1)})) is None
    assert step_too_small(judged({"policy/approx_kl": [1e-9] * tenth})) is not None


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


def test_verdicts_are_sorted_worst_first_and_causes_before_what_follows() -> None:
    found = verdicts({
        "policy/ratio_mean": series([1.0] * 5), "lr": series([0.0] * 9),
        "value/explained_variance": series([0.0] * 9), "grad/norm": series([0.0] * 9),
    })  # fmt: skip
    assert [each.level for each in found] == ["bad", "bad", "warning", "good", "good"]
    assert [each.cause for each in found[:2]] == [causes.ZERO_RATE, causes.NO_GRADIENT]
