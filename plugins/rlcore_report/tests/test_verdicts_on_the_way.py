"""Laws of the verdicts on runs that go on, that are limited by epochs or time, and that begin near their goal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from rlcore_report.health import judged_run as causes
from rlcore_report.health import loss_rules, reward_rules
from rlcore_report.health import loss_rules as update_rules
from rlcore_report.health import reward_rules as sampling_rules
from rlcore_report.health.judged_run import JudgedRun
from rlcore_report.health.step_size import step_too_small
from rlcore_report.metric_groups import Series
from rlcore_report.verdicts import verdicts

SMALL = {"policy/approx_kl": [1e-5] * 20}
"""KL of rounds of which 20 reach .004 nats a token at most, and 32 reach .01."""


def metrics_of(given: Mapping[str, Sequence[float]]) -> dict[str, Series]:
    """Return metrics of each step from 1 on; of evaluations, of every tenth step from 0 on."""
    return {
        name: Series(
            10 * np.arange(len(values)) if name.startswith("eval/") else np.arange(1, len(values) + 1),
            np.array(values, dtype=float),
        )
        for name, values in given.items()
    }


def judged(given: Mapping[str, Sequence[float]], **config: Any) -> JudgedRun:
    return JudgedRun(metrics_of(given), config)


def level_of_size(given: Mapping[str, Sequence[float]], **config: Any) -> str | None:
    found = step_too_small(judged(given, **config))
    return None if found is None else found.level


@pytest.mark.parametrize(("run", "passes", "level"), [
    ({"steps": 31}, 0.5, "bad"), ({"steps": 33}, 0.5, "good"),
    ({"epochs": 3.0}, 2.0, "bad"),  # 20 steps are two passes of three: 30 in all
    ({"epochs": 4.0}, 2.0, "good"), ({"steps": 31, "epochs": 4.0}, 2.0, "bad"),
    ({"steps": 40, "epochs": 3.0}, 2.0, "bad"),
    ({"steps": "many", "epochs": float("nan")}, 2.0, "bad"),
    ({"time_s": 60.0}, 2.0, None), ({"time_s": 60.0, "steps": 31}, 2.0, "bad"), ({}, 2.0, "bad"),
])  # fmt: skip
def test_the_budget_follows_from_steps_or_epochs_and_a_run_that_time_limits_has_none(
    run: Mapping[str, Any], passes: float, level: str | None
) -> None:
    given = {**SMALL, "progress/epoch": np.linspace(passes / 20, passes, 20).tolist()}
    assert level_of_size(given, run=run) == level


def test_steps_are_not_too_small_while_the_learning_rate_rises() -> None:
    assert level_of_size({**SMALL, "lr": np.linspace(1e-6, 1e-5, 20).tolist()}) is None
    assert level_of_size({**SMALL, "lr": [1e-5] * 20}) == "bad"
    assert level_of_size({**SMALL, "lr": np.linspace(1e-5, 1e-6, 20).tolist()}) == "bad"


@pytest.mark.parametrize(("further", "level"), [
    ({"response/length_mean": [200] * 20}, "bad"),  # .004 nats of 200 tokens: .8 a response
    ({"response/length_mean": [300] * 20}, "good"),
    ({"kl/mean": [0.9] * 20}, "bad"), ({"kl/mean": [1.1] * 20}, "good"),
    ({"reward/mean": np.linspace(0.3, 0.5, 20), "reward/max": [1.0] * 20}, "good"),  # .2 of the .7 that can be gained
    ({"reward/mean": np.linspace(0.3, 0.4, 20), "reward/max": [1.0] * 20}, "bad"),
    ({"reward/mean": [0.3, 0.8] * 10, "reward/max": [1.0] * 20}, "bad"),
])  # fmt: skip
def test_small_steps_are_enough_for_long_responses_and_for_a_reward_that_rises(
    further: Mapping[str, Sequence[float]], level: str
) -> None:
    assert level_of_size({**SMALL, **further}) == level


@pytest.mark.parametrize(("lowest", "first", "is_solved"), [
    (0.0, 0.97, True),  # 3 % below the best, of a range of 1
    (0.8, 0.97, False), (0.0, 0.92, False), (0.0, 0.5, False), (None, 0.97, False),
])  # fmt: skip
def test_a_run_that_begins_near_the_best_reward_is_solved(
    lowest: float | None, first: float, *, is_solved: bool
) -> None:
    given = {"reward/mean": [first, first + 0.002] * 10, "reward/max": [1.0] * 20}
    if lowest is not None:
        given["reward/min"] = [lowest] * 20
    run = judged({**given, "group/zero_spread_fraction": [0.95] * 20, "kl/mean": [2.0] * 20})
    assert run.is_solved == is_solved
    groups, moves = sampling_rules.zero_spread(run), reward_rules.never_improved(run)
    assert groups is not None
    assert groups.level == ("good" if run.is_nearly_solved else "bad")
    assert (moves is None) == is_solved


@pytest.mark.parametrize("value", [0.1, 0.7, 1.0])
def test_a_constant_reward_is_constant_and_nothing_else(value: float) -> None:
    given = {"reward/mean": [value] * 40, "reward/std": [0.0] * 40, "policy/skipped": [1.0] * 40}
    found = verdicts(metrics_of(given))
    assert [each.cause for each in found if each.level != "good"] == [causes.CONSTANT]


def test_updates_that_are_skipped_with_rewards_that_differ_are_reported() -> None:
    found = update_rules.skipped(judged({"policy/skipped": [1.0] * 20, "reward/std": [0.1] * 20}))
    assert found is not None
    assert found.level == "bad"


@pytest.mark.parametrize(("num_steps", "planned", "is_judged"), [
    (9, 40, False), (10, 40, True), (9, 9, True), (9, None, True),
])  # fmt: skip
def test_trends_of_a_run_that_goes_on_are_judged_from_its_tenth_step_on(
    num_steps: int, planned: int | None, *, is_judged: bool
) -> None:
    given = {"kl/mean": [50.0] * num_steps, "loss/policy": [float("nan")] * num_steps}
    found = [each.name for each in verdicts(metrics_of(given), (), {"run": {"steps": planned}}) if each.level != "good"]
    assert found[0] == "A loss is not finite"
    assert ("Updates are too large" in found) == is_judged


def test_steps_that_are_too_large_are_not_too_small_too() -> None:
    given = {"loss/total": [1.0, 9.0, 9.0, *[1.0] * 17], "eval/loss": [1.0, 1.0, 1.0]}
    small = step_too_small(judged(given))
    assert small is not None
    assert small.level == "bad"
    assert [each.cause for each in verdicts(metrics_of(given)) if each.level != "good"] == [causes.TOO_LARGE]


def test_without_a_checkpoint_that_is_better_than_the_start_the_advice_is_another_rate() -> None:
    falling = [2.0 - 0.1 * i for i in range(20)]
    lr = {"trainer": {"optimizer": {"lr": 1e-3}}}
    for values, option, value in (([1.0, 1.2], "trainer.optimizer.lr", "1e-04"), ([1.2, 1.0, 1.2], "run.steps", "10")):
        found = loss_rules.evaluation_loss(judged({"loss/total": falling, "eval/loss/awac": values}, **lr))
        assert found is not None
        assert (found.option, found.value) == (option, value)
        assert ("checkpoint.metric=eval/loss/awac" in found.advice) == (option == "run.steps")


@pytest.mark.parametrize(("late", "level"), [(0.61, "good"), (0.59, "bad")])
def test_the_accuracy_of_steps_is_one_of_preferences(late: float, level: str) -> None:
    found = loss_rules.labels(judged({"eval/step/accuracy": [0.5, late]}))
    assert found is not None
    assert found.level == level


def test_a_loss_of_rows_that_the_policy_samples_may_rise() -> None:
    rising = {"loss/total": [2.0, *np.linspace(1, 3, 19)]}
    assert loss_rules.risen(judged({**rising, "reward/max": [1.0] * 20})) is None
    found = loss_rules.risen(judged(rising))
    assert found is not None
    assert found.level == "bad"


@pytest.mark.parametrize(("last", "level"), [(0.5019, "bad"), (0.5021, "good")])
def test_a_distillation_on_prompts_whose_outputs_stay_the_same_has_too_small_steps(last: float, level: str) -> None:
    given = {"loss/total": [2.0, 1.9] * 10, "distill/agreement": [0.1] * 20, "reward/std": [0.2] * 20}
    assert level_of_size({**given, "eval/reward/mean": [0.5, last]}) == level
    assert level_of_size({**given, "eval/reward/mean": [0.5, last], "reward/std": [0.0] * 20}) is None
    assert level_of_size({**given, "eval/reward/mean": [0.5, last], "eval/loss": [2.0, 1.5]}) == "good"
