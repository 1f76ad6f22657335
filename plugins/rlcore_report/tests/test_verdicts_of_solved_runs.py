"""Laws of the verdicts on runs that reach their goal, on distillation, KTO, and trainers without a KL."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from rlcore_report.health import judged_run as causes
from rlcore_report.health import large_steps, loss_rules, reward_rules
from rlcore_report.health import loss_rules as update_rules
from rlcore_report.health import reward_rules as sampling_rules
from rlcore_report.health.judged_run import JudgedRun, shift
from rlcore_report.health.step_size import step_too_small
from rlcore_report.metric_groups import Series

SOLVED = {"reward/mean": [0.1, *[0.9] * 4, *[0.99] * 15], "reward/max": [1.0] * 20}
HALF = {"reward/mean": [0.1, *[0.4] * 4, *[0.5] * 15], "reward/max": [1.0] * 20}
NOISY = [0.5, 0.6] * 10


def judged(given: Mapping[str, Sequence[float]], config: Mapping[str, Any] | None = None) -> JudgedRun:
    """Return a run with metrics of each step from 1 on; of evaluations, of every tenth step from 0 on."""
    return JudgedRun({name: _series(name, values) for name, values in given.items()}, config or {})


def _series(name: str, values: Sequence[float]) -> Series:
    steps = 10 * np.arange(len(values)) if name.startswith("eval/") else np.arange(1, len(values) + 1)
    return Series(steps, np.array(values, dtype=float))


@pytest.mark.parametrize(("rewards", "late", "level"), [(SOLVED, 9, "good"), (SOLVED, 11, "bad"), (HALF, 9, "bad")])
def test_a_kl_that_is_large_at_first_is_excused_if_it_comes_back_and_the_run_is_solved(
    rewards: Mapping[str, Sequence[float]], late: float, level: str
) -> None:
    found = large_steps.step_too_large(judged({**rewards, "kl/mean": [0, 5, 12, *[late] * 17]}))
    assert found is not None
    assert found.level == level


@pytest.mark.parametrize(("rewards", "step", "level"), [(HALF, 5, "bad"), (HALF, 6, "good"), (SOLVED, 5, "good")])
def test_responses_that_become_alike_in_the_first_quarter_without_reward_are_a_step_too_large(
    rewards: Mapping[str, Sequence[float]], step: int, level: str
) -> None:
    spread = [0.4] * (step - 1) + [0.0] * (21 - step)
    found = large_steps.step_too_large(judged({**rewards, "reward/std": spread}))
    assert found is not None
    assert (found.level, found.step) == (level, step if level == "bad" else None)


@pytest.mark.parametrize(
    ("rewards", "first", "level"), [(SOLVED, 0.6, "good"), (SOLVED, 0.7, "bad"), (HALF, 0.6, "bad")]
)
def test_truncated_responses_of_a_solved_run_are_no_fault_if_a_third_ended_at_first(
    rewards: Mapping[str, Sequence[float]], first: float, level: str
) -> None:
    found = sampling_rules.truncation(judged({**rewards, "response/truncated_fraction": [first, *[1.0] * 19]}))
    assert found is not None
    assert found.level == level


@pytest.mark.parametrize(("rewards", "late", "level"), [
    (SOLVED, -0.2, "good"), (SOLVED, -0.3, "warning"), (HALF, -0.2, "warning"),
])  # fmt: skip
def test_a_value_function_that_knows_the_mean_is_enough_for_a_solved_run(
    rewards: Mapping[str, Sequence[float]], late: float, level: str
) -> None:
    given = {**rewards, "value/explained_variance": [late] * 20, "reward/std": [0.4] * 20}
    found = reward_rules.value_function(judged(given))
    assert found is not None
    assert found.level == level


@pytest.mark.parametrize(("loss", "last", "level"), [
    (0.5, 0.82, "good"), (0.5, 0.80, "warning"), (0.71, 0.84, "good"), (0.71, 0.83, "bad"),
])  # fmt: skip
def test_the_loss_of_pairs_may_rise_while_their_accuracy_stays(loss: float, last: float, level: str) -> None:
    losses = {"loss/total": [0.7] * 20, "eval/loss": [0.7, 0.4, loss]}
    found = loss_rules.evaluation_loss(judged({**losses, "eval/reward/accuracy": [0.5, 0.84, last]}))
    assert found is not None
    assert found.level == level


@pytest.mark.parametrize(("passes", "cause"), [(9, causes.NOISY_LABELS), (11, causes.OVERFITTED)])
def test_pairs_that_are_learned_by_heart_are_too_few(passes: int, cause: str) -> None:
    given = {"reward/accuracy": [1.0] * 20, "eval/reward/accuracy": [0.5] * 3}
    found = loss_rules.labels(judged({**given, "progress/epoch": np.linspace(0, passes, 20).tolist()}))
    assert found is not None
    assert found.cause == cause


@pytest.mark.parametrize(("reward", "beta", "level"), [
    (-0.9, None, "good"), (-1.1, None, "bad"), (1.1, None, "bad"), (-1.1, 0.2, "good"), (-2.1, 0.2, "bad"),
])  # fmt: skip
def test_ten_nats_in_the_first_steps_of_kto_are_a_step_too_large(reward: float, beta: float | None, level: str) -> None:
    given = {"loss/total": [0.5] * 20, "rewards/mean": [0, 0, 0, 0, *[reward] * 16]}
    found = large_steps.step_too_large(judged(given, {"trainer": {"beta": beta}}))
    assert found is not None
    assert found.level == level


def test_a_reward_that_falls_in_distillation_is_due_to_the_teacher() -> None:
    falling = {
        "reward/mean": [0.9, 0.92, 0.9, *np.linspace(0.9, 0.2, 17)],
        "loss/total": np.linspace(2, 1, 20).tolist(),
    }
    ours, other = (reward_rules.fallen(judged({**falling, **more})) for more in ({"distill/agreement": [0.5] * 20}, {}))
    assert ours is not None
    assert other is not None
    assert (ours.cause, other.cause) == (causes.WRONG_TEACHER, causes.INVERTED)


@pytest.mark.parametrize(("evaluations", "small", "unrelated"), [
    ([0.55, 0.55, 0.56], True, False), ([0.55, 0.7, 0.4], False, True),
])  # fmt: skip
def test_evaluations_with_the_same_random_numbers_show_whether_a_policy_without_a_kl_moves(
    evaluations: list[float], small: bool, unrelated: bool
) -> None:
    run = judged(
        {"reward/mean": NOISY, "reward/max": [1.0] * 20, "loss/policy": NOISY, "eval/reward/mean": evaluations}
    )
    too_small, unimproved = step_too_small(run), reward_rules.never_improved(run)
    assert too_small is not None
    assert unimproved is not None
    assert (too_small.level == "bad", unimproved.level == "warning") == (small, unrelated)


@pytest.mark.parametrize(("kl", "is_other"), [(9.0, True), (11.0, False)])
def test_a_ratio_off_one_is_no_sign_of_another_policy_where_updates_destroy_the_policy(
    kl: float, is_other: bool
) -> None:
    given = {"policy/ratio_mean": [0.25] * 20, "policy/approx_kl": [kl] * 20}
    found, large = sampling_rules.other_policy(judged(given)), large_steps.step_too_large(judged(given))
    assert (found is not None and found.level == "bad") is is_other
    assert large is not None
    assert large.level == "bad"


@pytest.mark.parametrize(("spread", "level"), [(0.1, "bad"), (0.0, "good")])
def test_equal_rewards_give_no_gradient_so_that_the_mask_is_not_blamed(spread: float, level: str) -> None:
    given = {"grad/norm": [1.0, *[0.0] * 19], "reward/std": [0.1, *[spread] * 19], "loss/policy": [0.0] * 20}
    found = update_rules.gradient(judged(given))
    assert found is not None
    assert found.level == level


@pytest.mark.parametrize(("evaluations", "level"), [([0.5, 0.4, 0.3], "bad"), ([0.5, 0.4, 0.45], "good")])
def test_a_reward_that_falls_by_little_more_than_noise_falls_if_evaluations_do_each_time(
    evaluations: list[float], level: str
) -> None:
    rewards = [0.5, 0.62, *[0.5, 0.6] * 7, 0.45, 0.4, 0.35, 0.4]
    run = judged({"reward/mean": rewards, "eval/reward/mean": evaluations})
    assert -3 < shift(run.metrics["reward/mean"]) < -2
    found = reward_rules.fallen(run)
    assert found is not None
    assert found.level == level
