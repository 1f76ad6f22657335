"""Rules on losses: not finite, a spike, an evaluation loss that rises, and those of preferences.

Also in this file: rules on optimizer steps: those that are skipped, the gradient, the learning rate, the order of the
data.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from rlcore_report.health import judged_run as causes
from rlcore_report.health.judged_run import ENOUGH, JudgedRun, Verdict, first_step, initial, median, noise
from rlcore_report.health.step_size import EVALUATED
from rlcore_report.metric_groups import Floats, Series

ACCURACIES = ("rewards/accuracies", "reward/accuracy", "step/accuracy")
CHANGING = {"rft/kept", "reward/max", "distill/agreement"}
"""Metrics of runs that sample what they are trained on."""
OTHER_TOKENS = 1.5
"""Factor between the first losses of training and evaluation, which have the same weights, that is no accident."""
MEMORISED, MANY_PASSES = 0.95, 10
"""Accuracy on training pairs, and passes over them, from which on they are learned by heart."""
LARGE_NORM, HUGE_NORM = 1e3, 1e5
"""Norms of a gradient that losses and rewards of usual scale do not have, and that leave nothing of most rows."""
SAME_ACCURACY = 0.03
"""Difference of accuracies that is noise: one standard error of a hundred pairs at .9."""


def finite(run: JudgedRun) -> Verdict | None:
    """Judge whether a loss is not a finite number."""
    found = {name: series for name, series in run.metrics.items() if name.startswith("loss") and len(series.values)}
    if not found:
        return None
    broken = [name for name, series in found.items() if not np.isfinite(series.values).all()]
    if not broken:
        return Verdict("Losses are finite", "good", f"{', '.join(found)}: every value is finite")
    first = int(found[broken[0]].steps[~np.isfinite(found[broken[0]].values)][0])
    return Verdict(
        "A loss is not finite", "bad", f"{broken[0]} is nan or infinite at step {first}",
        "Training diverged: resume from an earlier checkpoint with a lower trainer.optimizer.lr or "
        "trainer.optimizer.max_grad_norm, and check the scale of the rewards.",
        causes.TOO_LARGE, first, "trainer.optimizer.lr", run.rate(0.1),
    )  # fmt: skip


def spike(run: JudgedRun) -> Verdict | None:
    """Judge whether a supervised loss jumps, after it had fallen, by a quarter of its first value and ten sigma."""
    loss = run.series("loss/total", count=10)
    if loss is None or not run.is_supervised:
        return None
    values, first, size = loss.known, initial(loss), max(5, len(loss.known) // 8)
    for i in range(size, len(values)):
        before = values[i - size : i]
        level = median(before)
        if level < 0.95 * first and values[i] - level > max(first / 4, 10 * noise(before)):
            return _spike(run, loss, i, level)
    return Verdict("No spikes", "good", f"loss/total went from {first:.3g} to {median(loss.late):.3g} without a jump")


def _spike(run: JudgedRun, loss: Series, place: int, level: float) -> Verdict:
    step = int(loss.steps[np.isfinite(loss.values)][place])
    late = median(loss.late)
    ends = "recovers" if late < (level + loss.known[place]) / 2 else "stays there"
    clip = run.option("trainer.optimizer.max_grad_norm")
    return Verdict(
        "The loss jumps", "warning" if ends == "recovers" else "bad",
        f"loss/total jumps from {level:.3g} to {loss.known[place]:.3g} at step {step}, and {ends} at {late:.3g}",
        "One update or one batch has done damage: look at the rows of this step, clip the gradient more tightly, and "
        "lower the learning rate if it happens again; or resume from the checkpoint before.",
        causes.SPIKE, step, "trainer.optimizer.max_grad_norm",
        f"{clip / 4:.2g}" if isinstance(clip, int | float) and clip > 0 else "0.25",
    )  # fmt: skip


def risen(run: JudgedRun) -> Verdict | None:
    """Judge whether a supervised loss rises at the end, without a jump: by a quarter of its first value, and noise.

    Rows that the policy samples itself differ from step to step, so that their loss may rise while it learns.
    """
    loss, jump = run.series("loss/total", count=10), spike(run)
    if loss is None or not run.is_supervised or run.metrics.keys() & CHANGING or jump is None or jump.level != "good":
        return None
    values, first, size = loss.known, initial(loss), len(loss.late)
    levels = np.array([median(values[i : i + size]) for i in range(len(values) - size + 1)])
    place = int(levels.argmin())
    lowest, late = float(levels[place]), median(loss.late)
    evidence = f"loss/total went from {first:.3g} to {late:.3g}, and was {lowest:.3g} at the lowest"
    limit = lowest + max(abs(first) / 4, 4 * noise(values))
    if late <= limit:
        return Verdict("Loss", "good", evidence)
    steps = loss.steps[np.isfinite(loss.values)]
    step = next(int(steps[i]) for i in range(place, len(values)) if values[i] > limit)
    return Verdict(
        "The loss rises", "bad", evidence,
        "What was learned is lost again, step by step: lower the learning rate, or let it fall "
        "(trainer.optimizer.scheduler=cosine), and resume from a checkpoint before.",
        causes.TOO_LARGE, step, "trainer.optimizer.lr", run.rate(0.1),
    )  # fmt: skip


def wrong_mask(run: JudgedRun) -> Verdict | None:
    """Judge whether training and evaluation measure other tokens: first losses of the same weights are far apart."""
    loss, held_out = run.series("loss/total"), run.series("eval/loss", count=2)
    if loss is None or held_out is None or not run.is_supervised or int(held_out.steps[0]) != 0:
        return None
    first, other = float(loss.known[0]), float(held_out.known[0])
    evidence = f"before training, the loss is {first:.3g} on training rows and {other:.3g} on held-out rows"
    apart = max(first, other) > OTHER_TOKENS * min(first, other) and abs(first - other) > 5 * noise(loss.known)
    if not apart or min(first, other) < 0:
        return Verdict("Training and evaluation agree", "good", evidence)
    end = float(held_out.known[-1])
    learns = end < 0.8 * other
    return Verdict(
        "Training and evaluation measure different tokens", "warning" if learns else "bad",
        f"{evidence}; the latter ends at {end:.3g}",
        "The mask of one of them covers other tokens, such as prompts or padding, or the rows are of another kind: "
        "look at the first rows with `rlcore preview`, where chosen tokens are marked.",
        causes.WRONG_MASK, 1, "data.sample_pipeline", "one whose mask selects the answers",
    )  # fmt: skip


def evaluation_loss(run: JudgedRun) -> Verdict | None:
    """Judge whether the evaluation loss has risen by a tenth from its lowest value, and the accuracy has not stayed.

    The loss of pairs rises with confidence alone (Guo et al. 2017, arXiv:1706.04599), and their order is what is used.
    Above its first value it is worse than no training, so that the accuracy may not fall, nor the rows be memorised.
    After a jump of the training loss, that is the verdict.
    """
    name = next((name for name in EVALUATED if run.series(name, count=2) is not None), "")
    series, jump = run.series(name, count=2), spike(run)
    if series is None or not run.is_supervised or (jump is not None and jump.level != "good"):
        return None
    values, place = series.known, int(series.known.argmin())
    lowest, last, step = float(values[place]), float(values[-1]), int(series.steps[np.isfinite(series.values)][place])
    evidence = f"{name} went from {values[0]:.3g} to {last:.3g}, and was {lowest:.3g} after step {step}"
    rises = last > 1.1 * lowest if lowest > 0 else False
    accuracy = next((s for each in ACCURACIES if (s := run.series(f"eval/{each}", count=2)) is not None), None)
    is_worse = last >= values[0]
    change = float(accuracy.known[-1] - accuracy.known[place - len(values)]) if accuracy is not None else -1.0
    is_kept = change >= 0 if is_worse else change > -SAME_ACCURACY
    if not rises or (is_kept and not (is_worse and _are_memorised(run))):
        return Verdict("Evaluation loss", "good", evidence)
    if step <= 0:
        return Verdict(
            "The evaluation loss rises", "bad", evidence,
            "No checkpoint is as good as the model before training: lower the learning rate, or train on more rows.",
            causes.OVERFITTED, 1, "trainer.optimizer.lr", run.rate(0.1),
        )  # fmt: skip
    return Verdict(
        "The evaluation loss rises", "bad" if last > values[0] else "warning", evidence,
        "The model fits its training rows only: stop at the lowest evaluation loss, keep that checkpoint "
        f"(checkpoint.keep_best=1 checkpoint.metric={name} checkpoint.mode=min), or train on more rows.",
        causes.OVERFITTED, step, "run.steps", str(step),
    )  # fmt: skip


def _accuracy(run: JudgedRun) -> tuple[Series, str, float] | None:
    """Return the accuracy on held-out pairs, or else on training pairs, with its name and its value at the end."""
    for prefix in ("eval/", ""):
        for name in ACCURACIES:
            series = run.series(prefix + name, count=2 if prefix else 5)
            if series is not None:
                known = series.known[1:] if prefix and int(series.steps[0]) == 0 else series.known
                return series, prefix + name, float(known[-max(1, len(known) // 2) :].mean())
    return None


def _first_judged(series: Series) -> int:
    """Return the first step after training has begun."""
    return int(next((step for step in series.steps if step > 0), series.steps[-1]))


def _are_memorised(run: JudgedRun) -> bool:
    """Return whether the training pairs are ordered almost without error, after many passes over them."""
    accuracy, passes = run.series(*ACCURACIES), run.series("progress/epoch")
    if accuracy is None or passes is None:
        return False
    return median(accuracy.late) > MEMORISED and passes.known[-1] > MANY_PASSES


def labels(run: JudgedRun) -> Verdict | None:
    """Judge whether the accuracy on pairs is at chance, or below it, which inverted labels give.

    If the training pairs were learned by heart in many passes, there are too few of them, whatever the labels are.
    """
    found = _accuracy(run)
    if found is None:
        return None
    series, name, late = found
    evidence = f"{name} is {late:.3g} in the second half"
    if late >= 0.6:
        return Verdict("Preferences", "good", evidence)
    if late < 0.3:
        return Verdict(
            "Preferences are inverted", "bad", f"{evidence}: worse than chance",
            "What the model learned contradicts these pairs: chosen and rejected are exchanged in one data set.",
            causes.INVERTED_LABELS, _first_judged(series), "data.samples",
            "pairs with chosen and rejected exchanged",
        )  # fmt: skip
    if name.startswith("eval/") and _are_memorised(run):
        return Verdict(
            "Pairs are learned by heart", "bad", f"{evidence}, while training pairs are ordered almost without error",
            "Too few pairs were seen too often, and what was learned does not hold for others: add pairs, or make "
            "fewer steps. If more pairs do not help, the labels may be noise.",
            causes.OVERFITTED, _first_judged(series), "data.samples", "more pairs",
        )  # fmt: skip
    return Verdict(
        "Preferences are at chance", "bad", f"{evidence}, and .5 is chance",
        "The labels may be noise, or the model cannot tell the answers apart: read twenty pairs and label them "
        "yourself, and check that prompts and answers are not truncated (data.max_sample_tokens).",
        causes.NOISY_LABELS, _first_judged(series), "data.samples", "pairs that a person can tell apart",
    )  # fmt: skip


def chosen_answers(run: JudgedRun) -> Verdict | None:
    """Judge whether the log-prob of chosen answers collapses: by half of its first value and by five nats."""
    series = run.series("logps/chosen")
    if series is None:
        return None
    first, late = initial(series), median(series.late)
    limit = first - max(5.0, abs(first) / 2)
    evidence = f"logps/chosen went from {first:.3g} to {late:.3g}"
    if late >= limit:
        return Verdict("Chosen answers", "good", evidence)
    return Verdict(
        "Chosen answers become unlikely", "bad", evidence,
        "The loss falls because rejected answers become even less likely, and the model forgets both: lower the "
        "learning rate, raise trainer.beta, or set trainer.sft_coef.",
        causes.TOO_LARGE, first_step(series, lambda values: values < limit), "trainer.optimizer.lr", run.rate(0.1),
    )  # fmt: skip


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
    if median(norm.late) > LARGE_NORM:
        return _large_gradient(run, norm)
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


def _large_gradient(run: JudgedRun, norm: Series) -> Verdict:
    """Return the verdict of a norm that the clipping divides by so much that only the direction of a batch is left."""
    late, clip = median(norm.late), run.option("trainer.optimizer.max_grad_norm")
    is_clipped = isinstance(clip, int | float) and 0 < clip <= 10
    return Verdict(
        "The gradient is very large", "bad" if late > HUGE_NORM else "warning",
        f"the median of grad/norm is {late:.3g} in the last fifth of the steps",
        "Losses of usual scale have norms of about 1: scale the rewards or the loss down, and check the weights that "
        "training starts from. Clipping leaves the direction of the largest rows alone.",
        causes.LARGE_GRADIENT, first_step(norm, lambda values: values > LARGE_NORM),
        *(("trainer.optimizer.lr", run.rate(0.1)) if is_clipped else ("trainer.optimizer.max_grad_norm", "1")),
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
