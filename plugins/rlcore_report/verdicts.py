"""Health verdicts: pure functions over the metrics of a run and the prompts of its rollouts, with evidence and advice.

Trends compare the first fifth of a metric's values (early) with the last fifth (late). A function returns None if the
run lacks the metric or has too few values to judge it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Literal

import attrs
import numpy as np

from rlcore_report.series import Series

Metrics = Mapping[str, Series]
ENOUGH = 5
"""Values below which nothing is said about a trend."""
SIDE_REWARDS = ("mean", "std", "min", "max", "unscored")


@attrs.frozen
class Verdict:
    """The result of one check.

    Attributes:
        name: what was checked.
        level: `good`, `warning`, or `bad` if the run probably learns nothing of use.
        evidence: the numbers behind it.
        advice: what to do; empty if all is well.
    """

    name: str
    level: Literal["good", "warning", "bad"]
    evidence: str
    advice: str = ""


def kl_sign(metrics: Metrics) -> Verdict | None:
    """Judge whether the KL to the reference is below 0, which samples of the policy that learns do not give."""
    kl = _enough(metrics, "kl/mean")
    if kl is None:
        return None
    late = _median(kl.late)
    if late >= -0.1:
        return Verdict("KL above 0", "good", f"kl/mean is {late:.3g} in the last fifth of the steps")
    return Verdict(
        "KL below 0", "bad", f"the median of kl/mean is {late:.3g} in the last fifth of the steps",
        "Samples come from another policy than the one that learns: look for a sampler that keeps old weights, "
        "for dropout, and for options that truncate the distribution (gen.top_k, gen.top_p, gen.temperature).",
    )  # fmt: skip


def kl_growth(metrics: Metrics) -> Verdict | None:
    """Judge whether the KL to the reference explodes: above 10 nats and above five times its early value."""
    kl = _enough(metrics, "kl/mean")
    if kl is None:
        return None
    early, late = _median(kl.early), _median(kl.late)
    evidence = f"kl/mean went from {early:.3g} to {late:.3g}"
    if late <= 10 or late <= 5 * early:
        return Verdict("KL growth", "good", evidence)
    return Verdict(
        "KL explodes", "bad", evidence,
        "The policy leaves its reference: raise the KL coefficient of the trainer, lower trainer.optimizer.lr, and "
        "read completions for a reward that is exploited.",
    )  # fmt: skip


def ratio(metrics: Metrics) -> Verdict | None:
    """Judge whether the mean probability ratio of new to old policy is further than 0.1 from 1."""
    name = "policy/ratio_mean" if "policy/ratio_mean" in metrics else "policy/ratio_mean_trained"
    series = _enough(metrics, name, 1)
    if series is None:
        return None
    late = _median(series.late)
    evidence = f"the median of {name} is {late:.4g} in the last fifth of the steps"
    if abs(late - 1) <= 0.1:
        return Verdict("Ratio near 1", "good", evidence)
    return Verdict(
        "Ratio is not 1", "bad", evidence,
        "E[ratio] = 1 for samples of the old policy, so either sampler and trainer disagree (dropout, precision, old "
        "weights), or updates are too large: lower trainer.optimizer.lr or the passes over a round.",
    )  # fmt: skip


def zero_spread(metrics: Metrics) -> Verdict | None:
    """Judge the fraction of groups whose responses all have one score, and so no advantage."""
    series = _enough(metrics, "group/zero_spread_fraction", 1)
    if series is None:
        return None
    late = float(series.late.mean())
    evidence = f"{late:.0%} of the groups of the last fifth of the steps have responses with equal scores"
    if late <= 0.5:
        return Verdict("Groups with spread", "good", evidence)
    return Verdict(
        "Groups without spread", "bad" if late > 0.9 else "warning", evidence,
        "Groups with equal scores teach nothing: mix prompts of other difficulty, give partial credit, sample at a "
        "higher gen.temperature or raise trainer.num_generations.",
    )  # fmt: skip


def truncation(metrics: Metrics) -> Verdict | None:
    """Judge the fraction of responses that were cut at the longest length."""
    series = _enough(metrics, "response/truncated_fraction", 1)
    if series is None:
        return None
    late = float(series.late.mean())
    evidence = f"{late:.0%} of the responses of the last fifth of the steps are truncated"
    if late <= 0.5:
        return Verdict("Responses end", "good", evidence)
    return Verdict(
        "Responses are truncated", "bad" if late > 0.95 else "warning", evidence,
        "The policy does not end its responses: raise gen.max_new_tokens, set gen.stop_sequences, check the "
        "tokenizer's EOS, or let the reward penalise a missing end. Ignore this if fixed lengths are the task.",
    )  # fmt: skip


def entropy(metrics: Metrics) -> Verdict | None:
    """Judge whether the entropy collapsed: to less than a tenth of its early value, and below 0.1 nats."""
    series = _enough(metrics, "policy/entropy")
    if series is None:
        return None
    early, late = _median(series.early), _median(series.late)
    evidence = f"policy/entropy went from {early:.3g} to {late:.3g} nats a token"
    if late >= 0.1 * early or late >= 0.1:
        return Verdict("Entropy", "good", evidence)
    return Verdict(
        "Entropy collapsed", "warning", evidence,
        "All samples of a prompt are nearly alike, so nothing more is explored: lower the learning rate, raise the KL "
        "or entropy coefficient or gen.temperature. It is the expected end where each prompt has one right answer.",
    )  # fmt: skip


def value_function(metrics: Metrics) -> Verdict | None:
    """Judge whether the value function explains less than 5 % of the variance of the returns."""
    series = _enough(metrics, "value/explained_variance")
    if series is None:
        return None
    late = _median(series.late)
    evidence = f"the median of value/explained_variance is {late:.3g} in the last fifth of the steps"
    if late >= 0.05:
        return Verdict("Value function", "good", evidence)
    return Verdict(
        "Value function explains nothing", "warning", evidence,
        "Advantages are no better than with a constant baseline: raise trainer.value_coef, give the value function "
        "layers of its own (model.value_layers), or check that rewards depend on the text.",
    )  # fmt: skip


def second_reward(metrics: Metrics) -> Verdict | None:
    """Judge whether the reward rises while another measure of quality falls, both by more than 3 standard errors."""
    reward = _enough(metrics, "reward/mean")
    others = {name: series for name, series in metrics.items() if _is_second(name) and len(series.known) >= ENOUGH}
    if reward is None or not others:
        return None
    rise = _shift(reward)
    falls = {name: shift for name, series in others.items() if (shift := _shift(series)) < -3}
    if rise <= 3 or not falls:
        return Verdict(
            "Rewards agree", "good",
            f"reward/mean moved by {rise:+.1f} standard errors; none of {', '.join(others)} fell by more than 3 while "
            "it rose",
        )  # fmt: skip
    worst = min(falls, key=lambda name: falls[name])
    early, late = (float(part.mean()) for part in (others[worst].early, others[worst].late))
    return Verdict(
        "The reward rises while another falls", "bad",
        f"reward/mean went from {reward.early.mean():.3g} to {reward.late.mean():.3g}, {worst} from {early:.3g} to "
        f"{late:.3g}",
        "The reward may be exploited, or the policy fits the training prompts only: read completions, raise the KL "
        "coefficient, stop at the best evaluation (checkpoint.keep_best), or change the weights of the rewards.",
    )  # fmt: skip


def learning_rate(metrics: Metrics) -> Verdict | None:
    """Judge whether the learning rate was 0 in more than a tenth of the steps; schedules reach 0 at their end."""
    series = _enough(metrics, "lr", 1)
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
    )  # fmt: skip


def data_order(metrics: Metrics, prompts: Sequence[Sequence[str]] = ()) -> Verdict | None:
    """Judge whether the steps get other data: the position in the data moves on, and so do the prompts of rollouts.

    Args:
        metrics: the metrics; with `progress/epoch` at 1 or more passes a step, all steps may have the same prompts.
        prompts: of some steps, the prompts of the kept rollouts in their order.
    """
    series = _enough(metrics, "progress/epoch")
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
    )  # fmt: skip


def losses(metrics: Metrics) -> Verdict | None:
    """Judge whether a loss is not a finite number."""
    found = {name: series for name, series in metrics.items() if name.startswith("loss") and len(series.values)}
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
    )  # fmt: skip


CHECKS: tuple[Callable[[Metrics], Verdict | None], ...] = (
    losses, kl_sign, kl_growth, ratio, zero_spread, truncation, entropy, value_function, second_reward, learning_rate,
)  # fmt: skip
"""The checks of metrics, in the order of the page; `data_order` follows them."""
ORDER = ("bad", "warning", "good")


def verdicts(metrics: Metrics, prompts: Sequence[Sequence[str]] = ()) -> list[Verdict]:
    """Return the verdicts of all checks that apply to a run, the worst first; arguments as of `data_order`."""
    judged = [*(check(metrics) for check in CHECKS), data_order(metrics, prompts)]
    found = [verdict for verdict in judged if verdict is not None]
    return sorted(found, key=lambda verdict: ORDER.index(verdict.level))


def _enough(metrics: Metrics, name: str, count: int = ENOUGH) -> Series | None:
    series = metrics.get(name)
    return series if series is not None and len(series.known) >= count else None


def _median(values: np.ndarray) -> float:
    return float(np.median(values))


def _is_second(name: str) -> bool:
    """Return whether a metric measures quality beside `reward/mean`: a single reward, or the evaluation's."""
    plain, _, _ = name.partition("@")
    if plain.startswith("reward/"):
        return plain.removeprefix("reward/") not in SIDE_REWARDS
    return plain.startswith("eval/reward/") and plain.removeprefix("eval/reward/") not in SIDE_REWARDS[1:]


def _shift(series: Series) -> float:
    """Return by how many standard errors the late values are above the early ones."""
    early, late = series.early, series.late
    difference = float(late.mean() - early.mean())
    noise = math.sqrt(_variance(early, series) / len(early) + _variance(late, series) / len(late))
    return difference / noise if noise > 0 else math.copysign(math.inf, difference) if difference else 0.0


def _variance(values: np.ndarray, series: Series) -> float:
    """Return the variance of some values; of a single one, that of the differences of neighbours, halved."""
    if len(values) > 1:
        return float(values.var(ddof=1))
    return float((np.diff(series.known) ** 2).mean() / 2)
