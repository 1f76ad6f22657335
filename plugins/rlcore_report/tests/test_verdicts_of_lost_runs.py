"""Laws of the verdicts on runs that are lost in their first rounds, and of runs whose last evaluation is solved."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import pytest
from test_verdicts_of_solved_runs import HALF, SOLVED, judged

from rlcore_report.health import judged_run as causes
from rlcore_report.health import large_steps
from rlcore_report.health import reward_rules as sampling_rules
from rlcore_report.health.judged_run import JudgedRun
from rlcore_report.health.step_size import step_too_small
from rlcore_report.metric_groups import Series
from rlcore_report.verdicts import verdicts

RATE = {"trainer": {"optimizer": {"lr": 6e-3}}}
LOST = [0.3, *[0.2] * 19]


@pytest.mark.parametrize(("largest", "rewards", "level"), [
    (4.0, {"reward/mean": LOST}, "bad"), (0.9, {"reward/mean": LOST}, "good"), (4.0, HALF, "bad"),
    (4.0, SOLVED, "good"),
])  # fmt: skip
def test_one_round_that_makes_another_policy_is_too_large_in_a_run_that_is_not_solved_afterwards(
    largest: float, rewards: Mapping[str, Sequence[float]], level: str
) -> None:
    """The rate is to fall by ten, the most that is advised at once."""
    found = large_steps.step_too_large(judged({"policy/approx_kl": [0.01, largest, *[0.05] * 18], **rewards}, RATE))
    assert found is not None
    assert (found.level, found.step) == (level, 2 if level == "bad" else None)
    if level == "bad":
        assert (found.option, found.value) == ("trainer.optimizer.lr", "6e-04")  # 6e-3 / 10


def test_what_follows_from_a_policy_that_is_lost_does_not_come_before_its_cause() -> None:
    run = judged({
        "policy/approx_kl": [4.0, *[0.05] * 19], "reward/mean": LOST, "policy/entropy": [0.7, 0.3, *[1e-4] * 18],
        "response/truncated_fraction": [0.5, *[1.0] * 19],
    })  # fmt: skip
    found = [each.cause for each in verdicts(run.metrics) if each.level != "good"]
    assert found[0] == causes.TOO_LARGE
    assert set(found[1:]) == {causes.INVERTED, causes.TRUNCATED, causes.COLLAPSED}


@pytest.mark.parametrize(("rewards", "first", "step", "level"), [
    (HALF, 0.0, 5, "bad"), (HALF, 0.0, 6, "good"), (HALF, 0.6, 5, "good"), (SOLVED, 0.0, 5, "good"),
])  # fmt: skip
def test_groups_that_become_alike_in_the_first_steps_without_reward_are_a_step_too_large(
    rewards: dict[str, list[float]], first: float, step: int, level: str
) -> None:
    """Rewards still vary from prompt to prompt."""
    spread = [first] * (step - 1) + [1.0] * (21 - step)
    run = judged({**rewards, "reward/std": [0.4] * 20, "group/zero_spread_fraction": spread})
    found = large_steps.step_too_large(run)
    assert found is not None
    assert (found.level, found.step) == (level, step if level == "bad" else None)


STILL = {"reward/mean": [0.1, 0.12] * 10, "reward/max": [1.0] * 20, "policy/entropy": [0.8] * 20}


def test_a_larger_rate_is_not_advised_where_groups_have_no_spread_or_evaluations_have_changed() -> None:
    found = step_too_small(judged(STILL, RATE))
    assert found is not None
    assert found.level == "bad"
    assert step_too_small(judged({**STILL, "group/zero_spread_fraction": [0.0, *[1.0] * 19]}, RATE)) is None
    assert step_too_small(judged({**STILL, "group/zero_spread_fraction": [0.0, *[0.8] * 19]}, RATE)) == found
    moved = step_too_small(judged({**STILL, "eval/reward/mean": [0.3, 0.1, 0.1]}, RATE))
    assert moved is not None
    assert moved.level == "good"
    assert moved.evidence.endswith("evaluations, which sample with the same random numbers, give other rewards")
    stayed = step_too_small(judged({**STILL, "eval/reward/mean": [0.3, 0.31, 0.3]}, RATE))
    assert stayed is not None
    assert stayed.level == "bad"


@pytest.mark.parametrize(("last", "truncated", "level"), [
    (0.96, [0.6, 1.0], "good"), (0.94, [0.6, 1.0], "bad"), (0.96, [0.7, 1.0], "bad"), (0.96, [0.7, 0.6], "good"),
    (0.94, [0.6, 0.49], "good"), (0.94, [0.6, 0.51], "bad"),
])  # fmt: skip
def test_truncated_responses_are_no_fault_if_the_last_evaluation_is_solved_and_the_limit_leaves_room(
    last: float, truncated: list[float], level: str
) -> None:
    """From 0 to 1, training ends at .92, which is nearly solved."""
    run = judged({
        "reward/mean": [0.0, *[0.92] * 19], "reward/max": [1.0] * 20, "eval/reward/mean": [0.0, last],
        "response/truncated_fraction": [*truncated, *[1.0] * 18],
    })  # fmt: skip
    found = sampling_rules.truncation(run)
    assert found is not None
    assert found.level == level
    assert not run.is_solved


@pytest.mark.parametrize(("last", "level"), [(0.91, "good"), (0.89, "bad")])
def test_long_responses_are_no_fault_if_the_last_evaluation_is_nearly_solved_and_half_ended_at_first(
    last: float, level: str
) -> None:
    run = judged({
        "reward/mean": [0.0, *[0.8] * 19], "reward/max": [1.0] * 20, "eval/reward/mean": [0.0, last],
        "response/truncated_fraction": [0.4, *[1.0] * 19],
    })  # fmt: skip
    found = sampling_rules.truncation(run)
    assert found is not None
    assert found.level == level


@pytest.mark.parametrize(("rises_at", "solved", "level"), [
    (5, True, "good"), (2, True, "bad"), (5, False, "bad"), (2, False, "bad"),
])  # fmt: skip
def test_a_loss_that_rises_with_other_rows_is_no_fault_in_a_run_that_is_solved(
    rises_at: int, solved: bool, level: str
) -> None:
    """Rounds of four steps, whose rows the policy samples; the loss rises by a half and stays there."""
    steps = np.arange(1, 21)
    reward = np.array([0.1, 0.5, *[0.99 if solved else 0.5] * 3])
    metrics = {
        "loss/total": Series(steps, np.where(steps < rises_at, 1.0, 1.5)),
        "reward/mean": Series(steps[::4], reward), "reward/max": Series(steps[::4], np.ones(5)),
        "rft/kept": Series(steps[::4], np.full(5, 32.0)),
    }  # fmt: skip
    found = large_steps.step_too_large(JudgedRun(metrics))
    assert found is not None
    assert found.level == level
