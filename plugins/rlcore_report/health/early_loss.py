"""The sign of updates that are too large in a loss that is to fall: it rises in the first steps."""

from __future__ import annotations

import math

from rlcore_report.health.judged_run import ENOUGH, JudgedRun
from rlcore_report.health.trends import first_step, initial, median, noise
from rlcore_report.series import Series

LOSS_RISE = 1.15
"""Factor by which a loss that is to fall may exceed its first value in the first fifth of the steps, noise aside."""
LARGE_LOSS_RISE = 1.4
"""The factor that noise does not excuse."""


def rising_loss(run: JudgedRun) -> tuple[int | None, str] | None:
    """Judge whether a supervised loss rises at first.

    Returns:
        The step at which it is too high, None if it never is, and the evidence; None if the run has no such loss.
    """
    loss = run.series("loss/total")
    if loss is None or not run.is_supervised:
        return None
    first, early = _loss_at_start(run, loss), loss.known[: max(ENOUGH, len(loss.known) // 5)]
    if run.is_nearly_solved:
        early = early[: _num_of_first_rows(run, loss)]
    limit = max(LOSS_RISE * first, min(first + 4 * noise(loss.late), LARGE_LOSS_RISE * first))
    usual = noise(loss.late) / max(abs(median(loss.late)), 1e-9) * first  # batches differ in proportion to the loss
    is_lasting = int((early > limit).sum()) > 1 or float(early.max()) > first + 4 * usual
    rises = first > 0 and float(early.max()) > limit and is_lasting
    step = first_step(loss, lambda values: values > limit) if rises else None
    return step, f"loss/total is {first:.3g} at first, and {early.max():.3g} at most in the first steps"


def _num_of_first_rows(run: JudgedRun, loss: Series) -> int:
    """Return how many losses are of the rows of the first round, in a run that learns from the rows that it samples.

    Later rounds have other rows, whose loss may be higher although the policy is better.
    """
    reward = run.metrics.get("reward/mean")
    if reward is None or "rft/kept" not in run.metrics or len(reward.steps) < 2:
        return len(loss.known)
    return max(1, int((loss.steps < reward.steps[1]).sum()))


def _loss_at_start(run: JudgedRun, loss: Series) -> float:
    """Return the highest of the first loss, of that of step 0 on held-out rows, and of chance for a reward model.

    The first batch may be an easy one. A policy that learns from preferences equals its reference at first, so that
    its first loss is chance.
    """
    held_out = run.series("eval/loss", "eval/loss/total", count=1)
    found = [initial(loss), *([initial(held_out)] if held_out is not None and not held_out.steps[0] else [])]
    if "reward/accuracy" in run.metrics:
        found.append(math.log(2))
    return max(found)
