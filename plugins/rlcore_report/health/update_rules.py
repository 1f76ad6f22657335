"""Rules on optimizer steps: those that are skipped, the gradient, the learning rate, the order of the data."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from rlcore_report.health import causes
from rlcore_report.health.judged_run import ENOUGH, JudgedRun, Verdict
from rlcore_report.health.trends import first_step
from rlcore_report.series import Floats


def skipped(run: JudgedRun) -> Verdict | None:
    """Judge the share of steps with skipped updates; a step without any advantage has nothing to learn.

    Nor has one of a nearly solved run whose responses are equally good.
    """
    found = [run.series(name, count=1) for name in ("policy/skipped", "grad/skipped")]
    counts = next((series for series in found if series is not None), None)
    if counts is None:
        return None
    is_skipped, rewards = counts.values > 0, run.metrics.get("reward/std")
    if rewards is not None and len(rewards.values) == len(is_skipped):
        is_skipped = is_skipped & (rewards.values > 0)
    spread = run.metrics.get("group/zero_spread_fraction")
    if spread is not None and len(spread.values) == len(is_skipped):
        is_skipped = is_skipped & (spread.values < 1)
    share = float(is_skipped.mean())
    evidence = f"{share:.0%} of the steps have skipped updates"
    if is_skipped.sum() <= max(1, len(is_skipped) // 10) or run.is_nearly_solved:
        return Verdict("Updates are made", "good", evidence)
    return Verdict(
        "Updates are skipped", "bad" if share > 0.5 else "warning", evidence,
        "The gradient is not finite, or the ratio is out of bounds: lower the learning rate, and check the scale of "
        "the rewards; in fp16, use bf16 (run.mixed_precision). In online_dpo, steps are skipped too if all responses "
        "to each prompt have the same reward: use a finer reward.",
        causes.SKIPPED, int(counts.steps[is_skipped][0]), "trainer.optimizer.lr", run.rate(0.1),
    )  # fmt: skip


def gradient(run: JudgedRun) -> Verdict | None:
    """Judge whether the gradient is 0 in more than half of the steps, if rewards without spread do not explain it."""
    norm, rewards = run.series("grad/norm"), run.metrics.get("reward/std")
    if norm is None:
        return None
    zeros = norm.known < 1e-10
    if rewards is not None and len(rewards.values) == len(zeros) and not run.is_supervised:
        zeros &= rewards.values > 0
    evidence = f"grad/norm is 0 in {int(zeros.sum())} of {len(zeros)} steps"
    spread = run.series("group/zero_spread_fraction", count=1)
    has_no_spread = spread is not None and float(spread.late.mean()) > 0.9
    if zeros.mean() <= 0.5 or run.is_solved or has_no_spread:
        return Verdict("Gradient", "good", evidence)
    return Verdict(
        "The gradient is 0", "bad", evidence,
        "No token counts, or nothing that trains is used: check the mask of chosen tokens, and which parameters are "
        "frozen.",
        causes.NO_GRADIENT, first_step(norm, lambda values: values < 1e-10),
        *(("data.sample_pipeline", "one whose mask selects the answers") if run.is_supervised else
          ("model.unfrozen_layers", "null, which trains all layers")),
    )  # fmt: skip


def learning_rate(run: JudgedRun) -> Verdict | None:
    """Judge whether the learning rate was 0 in more than a tenth of the steps; schedules reach 0 at their end."""
    series = run.series("lr", count=1)
    if series is None:
        return None
    zeros = int((series.known == 0).sum())
    evidence = f"lr is 0 in {zeros} of {len(series.known)} steps"
    if zeros <= max(1, len(series.known) // 10):
        return Verdict("Learning rate", "good", evidence)
    return Verdict(
        "Learning rate is 0", "bad", evidence,
        "These steps learned nothing: check trainer.optimizer.scheduler, its options and the number of steps it was "
        "built for, and trainer.optimizer.warmup_steps.",
        causes.ZERO_RATE, first_step(series, _zero_again), "trainer.optimizer.scheduler", "constant",
    )  # fmt: skip


def _zero_again(values: Floats) -> npt.NDArray[np.bool_]:
    """Return where a rate is 0, without the first step of a warm-up."""
    zero: npt.NDArray[np.bool_] = values == 0
    zero[0] &= len(values) < 2
    return zero


def data_order(run: JudgedRun) -> Verdict | None:
    """Judge whether the steps get other data: the position in the data moves on, and so do the prompts of rollouts.

    With `progress/epoch` at 1 or more passes a step, all steps may have the same prompts.
    """
    series, prompts = run.series("progress/epoch"), run.prompts
    evidence, pace = list[str](), 0.0
    if series is not None:
        first, last = series.known[0], series.known[-1]
        pace = (last - first) / (len(series.known) - 1)
        evidence.append(f"progress/epoch went from {first:.4g} to {last:.4g} in {len(series.known)} steps")
    is_judged = len(prompts) >= ENOUGH and (pace < 1 if series is not None else len(set(prompts[0])) > 1)
    if not evidence and not is_judged:
        return None
    distinct = len({tuple(step) for step in prompts})
    if is_judged:
        evidence.append(f"rollouts of {len(prompts)} steps have {distinct} different lists of prompts")
    if (series is None or pace > 0) and not (is_judged and distinct == 1):
        return Verdict("Data order", "good", "; ".join(evidence))
    return Verdict(
        "The order of the data stands still", "bad", "; ".join(evidence),
        "Every step gets the same rows: in a trainer of your own, take indices from rlcore.training.Order and save its "
        "state in state_dict.",
        causes.STILL, int(series.steps[0]) if series is not None else None,
    )  # fmt: skip
