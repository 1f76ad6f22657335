"""Health verdicts: the table of all rules, each a pure function from a run's metrics and options to a verdict.

Metrics are judged against their first values, those of step 0 where an evaluation was made, since damage within the
first steps would otherwise be what the rest is compared with. A rule returns None if the run lacks its metrics.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import attrs

from rlcore_report.health import judged_run as causes
from rlcore_report.health import large_steps, loss_rules, reward_rules
from rlcore_report.health import loss_rules as update_rules
from rlcore_report.health import reward_rules as sampling_rules
from rlcore_report.health.judged_run import JudgedRun, Verdict
from rlcore_report.health.step_size import step_too_small
from rlcore_report.metric_groups import Series

__all__ = ["ORDER", "RULES", "Verdict", "verdicts"]

RULES: tuple[Callable[[JudgedRun], Verdict | None], ...] = (
    loss_rules.finite,
    sampling_rules.other_policy,
    reward_rules.constant,
    update_rules.learning_rate,
    loss_rules.wrong_mask,
    large_steps.step_too_large,
    loss_rules.chosen_answers,
    update_rules.gradient,
    step_too_small,
    loss_rules.labels,
    reward_rules.disagreement,
    reward_rules.fallen,
    sampling_rules.length,
    sampling_rules.truncation,
    update_rules.skipped,
    reward_rules.entropy,
    large_steps.kl_growth,
    sampling_rules.zero_spread,
    loss_rules.spike,
    loss_rules.risen,
    loss_rules.evaluation_loss,
    reward_rules.never_improved,
    reward_rules.value_function,
    update_rules.data_order,
)
"""Causes before what follows from them: of several verdicts of one level, the first names the likely cause."""
CERTAIN = (
    loss_rules.finite,
    sampling_rules.other_policy,
    reward_rules.constant,
    update_rules.learning_rate,
    loss_rules.wrong_mask,
    update_rules.gradient,
    update_rules.data_order,
)
"""Rules that need no trend: those of a run that goes on and has made fewer than ten steps."""
ORDER = ("bad", "warning", "good")


def verdicts(
    metrics: Mapping[str, Series], prompts: Sequence[Sequence[str]] = (), config: Mapping[str, object] | None = None
) -> list[Verdict]:
    """Return the verdicts of all rules that apply to a run, the worst first, and of equal ones the likely cause.

    Args:
        metrics: the metrics.
        prompts: of some steps, the prompts of the kept rollouts in their order.
        config: the resolved configuration, whose values the advice changes.
    """
    run = JudgedRun(metrics, config or {}, prompts)
    rules = CERTAIN if run.is_beginning else RULES
    found = [verdict for rule in rules if (verdict := rule(run)) is not None]
    if any(each.cause == causes.TOO_LARGE for each in found):
        found = [each for each in found if each.cause != causes.TOO_SMALL]
    found = sorted(found, key=lambda verdict: ORDER.index(verdict.level))
    return [found[0], *(_following(each, found[0]) for each in found[1:])] if found else []


def _following(verdict: Verdict, first: Verdict) -> Verdict:
    """Return a verdict with the name of the first one, if it follows from that."""
    follows = verdict.cause in causes.FOLLOWING.get(first.cause, ()) and (verdict.step or 0) >= (first.step or 0)
    return attrs.evolve(verdict, follows=first.name) if follows else verdict
