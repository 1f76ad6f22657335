"""Rules on steps that are too large: for a round, for the KL to the reference, for the loss.

Also in this file: the sign of updates that are too large in a loss that is to fall: it rises in the first steps.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from rlcore_report.health import judged_run as causes
from rlcore_report.health.judged_run import (
    ENOUGH,
    JudgedRun,
    Verdict,
    first_step,
    first_values,
    initial,
    median,
    noise,
    start,
)
from rlcore_report.health.reward_rules import RATIOS
from rlcore_report.health.step_size import APPROX_KLS
from rlcore_report.metric_groups import Floats, Series

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


LARGE_KL = 0.2
"""KL of one round's updates, in nats a token, that is far too large."""
LOST_KL = 1.0
"""The KL of a round from which on the policy is another one."""
ALIKE = 0.9
"""Share of groups with equal scores from which on responses to a prompt are alike."""
LARGE_CLIP = 0.5
LARGE_TOTAL_KL, LARGE_TOKEN_KL = 10.0, 0.5
"""KL to the reference, in nats a response and a token, that no run reaches within its first tenth in good order."""
KTO_BETA = 0.1
"""The default of trainer.beta with the loss kto."""
LARGE_DRIFT = 3.0
"""Change of a reward model's mean score, in standard deviations of its scores."""


def step_too_large(run: JudgedRun) -> Verdict | None:
    """Judge whether updates are too large.

    Signs: approx_kl or the share of clipped ratios is large in the first rounds or the last, the mean ratio is off 1,
    the KL to the reference is large within the first tenth of the steps and does not come back, all responses become
    alike early, a supervised loss rises at first, the gradient grows, or the scores of a reward model drift away.
    """
    signs = [
        _approx_kl(run),
        _lost_at_first(run),
        _clipped(run),
        _ratio(run),
        _fast_kl(run),
        _fast_log_ratio(run),
        _sudden_end(run),
        _equal_groups(run),
        rising_loss(run),
        _growing_gradient(run),
        _drift(run),
    ]
    found = [sign for sign in signs if sign is not None]
    if not found:
        return None
    bad = [(step, text) for step, text in found if step is not None]
    if not bad:
        return Verdict("Size of updates", "good", "; ".join(text for _, text in found))
    return Verdict(
        "Updates are too large", "bad", "; ".join(text for _, text in bad),
        "The model jumps instead of learning, and what it had learned before is lost: lower the learning rate, and "
        "once more if that is not enough, because the size of the damage does not show how much too large the rate "
        "was. A warm-up (trainer.optimizer.warmup_steps) helps where only the first steps are too large.",
        causes.TOO_LARGE, min(step for step, _ in bad), "trainer.optimizer.lr", run.rate(0.1),
    )  # fmt: skip


def _both_ends(series: Series) -> tuple[float, float]:
    return median(series.known[:ENOUGH]), median(series.late)


def _judged(name: str, series: Series | None, limit: float) -> tuple[int | None, str] | None:
    if series is None:
        return None
    early, late = _both_ends(series)
    step = first_step(series, lambda values: values > limit) if max(early, late) > limit else None
    return step, f"the median of {name} is {early:.2g} in the first rounds and {late:.2g} in the last"


def _approx_kl(run: JudgedRun) -> tuple[int | None, str] | None:
    return _judged("approx_kl", run.series(*APPROX_KLS), LARGE_KL)


def _lost_at_first(run: JudgedRun) -> tuple[int | None, str] | None:
    """Judge whether an early round makes another policy of it, in a run that is not nearly solved afterwards."""
    kl = run.series(*APPROX_KLS)
    if kl is None or run.is_supervised:
        return None
    largest = float(kl.known[:ENOUGH].max())
    is_lost = largest > LOST_KL and not run.is_nearly_solved
    return (first_step(kl, lambda values: values > LOST_KL) if is_lost else None), (
        f"approx_kl is {largest:.2g} nats a token at most in the first rounds"
    )


def _clipped(run: JudgedRun) -> tuple[int | None, str] | None:
    whole = run.series("policy/clip_fraction")
    low, high = run.series("policy/clip_low_fraction"), run.series("policy/clip_high_fraction")
    if whole is None and low is not None and high is not None and len(low.values) == len(high.values):
        whole = Series(low.steps, low.values + high.values)
    return _judged("the clipped share of tokens", whole, LARGE_CLIP)


def _ratio(run: JudgedRun) -> tuple[int | None, str] | None:
    ratio = run.series(*RATIOS)
    if ratio is None:
        return None
    early, late = _both_ends(ratio)
    is_off = max(abs(early - 1), abs(late - 1)) > 0.1
    step = first_step(ratio, lambda values: abs(values - 1) > 0.1) if is_off else None
    return step, f"the median of the mean ratio is {early:.3g} in the first rounds and {late:.3g} in the last"


def _fast_kl(run: JudgedRun) -> tuple[int | None, str] | None:
    kl = run.series("kl/mean")
    if kl is None or run.is_supervised:
        return None
    tokens = _tokens(run)
    step = first_step(kl, lambda values: (values > LARGE_TOTAL_KL) & (values / tokens > LARGE_TOKEN_KL))
    is_early = step is not None and step <= _num_first(run)
    came_back = median(kl.late) <= LARGE_TOTAL_KL and run.is_nearly_solved
    return (step if is_early and not came_back else None), f"kl/mean is {kl.known.max():.3g} nats at most"


def _fast_log_ratio(run: JudgedRun) -> tuple[int | None, str] | None:
    """Judge how far the likelihood of answers with a verdict moves at first: KTO reports beta times its log-ratio."""
    rewards, beta = run.series("rewards/mean"), run.option("trainer.beta")
    if rewards is None:
        return None
    ratio = Series(
        rewards.steps, np.abs(rewards.values) / (beta if isinstance(beta, int | float) and beta > 0 else KTO_BETA)
    )
    step = first_step(ratio, lambda values: values > LARGE_TOTAL_KL)
    is_early = step is not None and step <= _num_first(run)
    return (step if is_early else None), (
        f"the log-prob of answers moves by {ratio.known[: int(_num_first(run))].max():.3g} nats in the first steps"
    )


def _num_first(run: JudgedRun) -> float:
    """Return how many steps are the first tenth of a run, or of a short one the first five."""
    return max(ENOUGH, run.total_steps / 10)


def _sudden_end(run: JudgedRun) -> tuple[int | None, str] | None:
    """Judge whether all responses have become alike within the first quarter of the steps, without the best reward.

    Many small steps can take the entropy away too, but they take longer. A reward of the wrong sign leads to the worst
    responses as fast, so that a reward that falls must have its end in the first tenth.
    """
    spread, reward = run.series("reward/std"), run.series("reward/mean")
    if spread is None or reward is None or run.is_supervised or not spread.known[0] > 0:
        return None
    limit = spread.known[0] / 10
    bound = _num_first(run) if float(reward.late.mean()) < initial(reward) else run.total_steps / 4
    step = _early_end(run, spread, lambda values: values < limit, bound)
    evidence = f"reward/std went from {spread.known[0]:.2g} to {median(spread.late):.2g}"
    return (None, evidence) if step is None else (step, f"all responses become alike: {evidence}")


def _equal_groups(run: JudgedRun) -> tuple[int | None, str] | None:
    """Judge the same of the responses to each prompt, by their scores, within the first tenth.

    Responses of all prompts still have different rewards if each prompt has one response left.
    """
    spread, reward = run.series("group/zero_spread_fraction"), run.series("reward/mean")
    if spread is None or reward is None or not spread.known[0] < 0.5:
        return None
    step = _early_end(run, spread, lambda values: values >= ALIKE, _num_first(run))
    evidence = f"group/zero_spread_fraction went from {spread.known[0]:.2g} to {median(spread.late):.2g}"
    return (None, evidence) if step is None else (step, f"all responses to a prompt become alike: {evidence}")


def _early_end(
    run: JudgedRun, series: Series, holds: Callable[[Floats], npt.NDArray[np.bool_]], bound: float
) -> int | None:
    """Return the step, up to `bound`, from which a condition mostly holds in a run that is not solved; else None."""
    step = first_step(series, holds)
    if step is None or step > bound or run.is_nearly_solved:
        return None
    return step if bool(holds(np.array([median(series.values[series.steps >= step])]))[0]) else None


def _tokens(run: JudgedRun) -> float:
    length = run.series("response/length_mean", count=1)
    return max(1.0, median(length.known)) if length is not None else 1.0


def _growing_gradient(run: JudgedRun) -> tuple[int | None, str] | None:
    norm = run.series("grad/norm")
    if norm is None:
        return None
    first, late = median(first_values(norm)), median(norm.late)
    limit = max(20 * first, 10.0)
    return (first_step(norm, lambda values: values > limit) if late > limit else None), (
        f"grad/norm went from {first:.3g} to {late:.3g}"
    )


def _drift(run: JudgedRun) -> tuple[int | None, str] | None:
    """Judge the scores of a reward model, whose level its loss does not fix: a few large steps move it far."""
    mean, spread = run.series("reward/mean"), run.series("reward/std")
    if mean is None or spread is None or "reward/accuracy" not in run.metrics:
        return None
    first, late, sd = initial(mean), median(mean.late), median(spread.late)
    limit = LARGE_DRIFT * sd
    step = first_step(mean, lambda values: abs(values - first) > limit) if abs(late - first) > limit else None
    return step, f"the mean score went from {first:.3g} to {late:.3g}, with a deviation of {sd:.2g}"


def kl_growth(run: JudgedRun) -> Verdict | None:
    """Judge whether the policy leaves its reference by more than 10 nats, while the reward does not rise."""
    kl = run.series("kl/mean")
    if kl is None or run.is_supervised:
        return None
    late, tokens, reward = median(kl.late), _tokens(run), run.series("reward/mean")
    evidence = f"kl/mean went from {initial(kl):.3g} to {late:.3g} nats, {late / tokens:.2g} a token"
    pays = reward is not None and float(reward.late.mean()) - start(reward) > 2 * noise(reward.known)
    if late <= LARGE_TOTAL_KL or late / tokens <= LARGE_TOKEN_KL or run.is_solved or pays:
        return Verdict("KL growth", "good", evidence)
    coef = run.option("trainer.kl_coef")
    value = f"{5 * coef:.1g}" if isinstance(coef, int | float) and coef > 0 else "0.05"
    return Verdict(
        "KL explodes", "bad", f"{evidence}, and the reward does not rise",
        "The policy moves far from its reference without a higher reward: raise the KL coefficient, lower "
        "trainer.optimizer.lr, and read completions.",
        causes.TOO_LARGE, first_step(kl, lambda values: values > LARGE_TOTAL_KL), "trainer.kl_coef", value,
    )  # fmt: skip
