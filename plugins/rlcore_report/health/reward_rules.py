"""Rules on rewards: constant, fallen, never improved, one against another; the entropy and the value function.

Also in this file: rules on what is sampled: whether the policy that learns has sampled it, its lengths, ends and
groups.
"""

from __future__ import annotations

import numpy as np

from rlcore_report.health import judged_run as causes
from rlcore_report.health.judged_run import (
    ENOUGH,
    JudgedRun,
    Verdict,
    first_lasting,
    first_step,
    first_values,
    initial,
    median,
    noise,
    shift,
    start,
)
from rlcore_report.health.step_size import APPROX_KLS, evaluations_move, movement
from rlcore_report.metric_groups import Series

UNJUDGED = ("loss", "reward", "kl", "perplexity", "reward/mean", "loss/mean", "kl/mean")
"""Metrics of evaluations without a group that other rules judge, or that are to fall."""
SIDE_REWARDS = ("mean", "std", "min", "max", "unscored", "accuracy", "margin", "chosen", "rejected")
EXPLODED_FACTOR, EXPLODED_NATS = 2.0, 1.0
"""By how much the entropy, in nats a token, must rise to be that of a policy that forgets what it knew."""
COLLAPSED_SHARE = 0.1
"""Share of its first value that a metric of metric_fn keeps at most if it has collapsed."""
MANY = 20
"""Rounds after which a reward that has not risen is worth a word."""
WORSE_THAN_MEAN = -0.25
"""Explained variance of a value function that is clearly worse than the mean return, which has 0."""


def _reward(run: JudgedRun, count: int = ENOUGH) -> Series | None:
    return None if run.is_supervised and "reward/accuracy" in run.metrics else run.series("reward/mean", count=count)


def _is_flat(reward: Series) -> bool:
    """Return whether all values are equal, but for rounding."""
    return bool(np.ptp(reward.known) <= 1e-8 * max(1.0, float(np.abs(reward.known).max())))


def constant(run: JudgedRun) -> Verdict | None:
    """Judge whether all responses of all steps have the same reward."""
    reward, spread = _reward(run, 3), run.series("reward/std", count=3)
    if reward is None:
        return None
    values = reward.known
    if not _is_flat(reward) or (spread is not None and float(spread.known.max()) > 1e-8):
        return Verdict("Reward varies", "good", f"reward/mean lies between {values.min():.3g} and {values.max():.3g}")
    return Verdict(
        "The reward is constant", "bad", f"every response of {len(values)} steps has the reward {values[0]:.3g}",
        "Nothing can be learned from it: call the reward function with a good and a bad response by hand. Often the "
        "answer is not found in the text, or a column of the prompts is missing.",
        causes.CONSTANT, int(reward.steps[0]), "data.reward_fn", "a function that tells responses apart",
    )  # fmt: skip


def fallen(run: JudgedRun) -> Verdict | None:
    """Judge whether the reward has fallen below its first values, or has lost half of what it had gained.

    The reward of a distillation is not what it learns; that it falls is the teacher's doing. Of a run whose evaluations
    fall each time, fewer standard errors are enough.
    """
    reward = _reward(run)
    if reward is None or _is_flat(reward):
        return None
    first, late = start(reward), float(reward.late.mean())
    best, step = _best(reward)
    sd = noise(reward.known)
    evidence = f"reward/mean went from {first:.3g} to {late:.3g}"
    gained, lost = best - first, best - late
    if "distill/agreement" in run.metrics and shift(reward) < -3 and first - late > 0.1 * abs(first):
        return _worse_teacher(evidence, first_lasting(reward, lambda values: values < first - sd))
    limit = -2 if _evaluations_fall(run) else -3
    if shift(reward) < limit and first - late > 0.1 * abs(first) and gained < 3 * sd:
        return Verdict(
            "The reward falls", "bad", evidence,
            "The policy learns the opposite: a reward or a weight has the wrong sign, or the advantages have. If "
            "updates are large, lower trainer.optimizer.lr first.",
            causes.INVERTED, first_lasting(reward, lambda values: values < first - sd), "data.reward_fn",
            "the reward with the other sign",
        )  # fmt: skip
    if gained > 4 * sd and lost > max(gained / 2, 4 * sd):
        return Verdict(
            "The reward collapses", "bad", f"{evidence}; around step {step} it was {best:.3g}",
            "What was learned is lost again: lower trainer.optimizer.lr or raise the KL coefficient, and keep the best "
            "checkpoint (checkpoint.keep_best).",
            causes.TOO_LARGE, first_lasting(reward, lambda values: values < best - lost / 2),
            "trainer.optimizer.lr", run.rate(0.3),
        )  # fmt: skip
    return Verdict("Reward", "good", evidence)


def _evaluations_fall(run: JudgedRun) -> bool:
    found = run.series("eval/reward/mean", count=3)
    return found is not None and bool((np.diff(found.known) < 0).all())


def _worse_teacher(evidence: str, step: int | None) -> Verdict:
    """Return the verdict of a distillation whose reward falls: what it learns is the teacher, not the reward."""
    return Verdict(
        "The teacher lowers the reward", "bad", evidence,
        "Distillation follows the teacher, whatever the rewards are: score the teacher's own outputs. Often it is the "
        "wrong folder, a model before its training, or one with another prompt format.",
        causes.WRONG_TEACHER, step, "trainer.teacher", "a model with a higher reward",
    )  # fmt: skip


def _best(reward: Series) -> tuple[float, int]:
    """Return the highest mean of a window as long as the last fifth, and the step in its middle."""
    values, size = reward.known, len(reward.late)
    means = np.convolve(values, np.ones(size) / size, "valid")
    place = int(means.argmax())
    steps = reward.steps[np.isfinite(reward.values)]
    return float(means[place]), int(steps[place + size // 2])


def never_improved(run: JudgedRun) -> Verdict | None:
    """Judge whether the policy changes while the reward does not: it does not depend on what the policy does.

    A distillation may leave the reward where it is.
    """
    reward = _reward(run, MANY)
    if reward is None or run.is_solved or "distill/agreement" in run.metrics:
        return None
    moved = _moved(run)
    evidence = f"reward/mean moved by {shift(reward):+.1f} standard errors in {len(reward.known)} steps"
    if abs(shift(reward)) > 2 or not moved:
        return Verdict("Reward moves", "good", evidence)
    return Verdict(
        "The reward never improved", "warning", f"{evidence}, while {moved}",
        "The reward may not depend on the text: score the same responses twice, and rank a few by hand. Otherwise "
        "raise the number of responses of a step, since noise hides the difference between them.",
        causes.UNRELATED, int(reward.steps[0]), "data.reward_fn", "a function of the text",
    )  # fmt: skip


def _moved(run: JudgedRun) -> str:
    """Return how the policy has moved; empty if it has not, or if no metric shows it."""
    moved = movement(run)
    if moved is not None:
        return f"the policy moved by {moved:.2g} nats a token" if moved >= 0.1 else ""
    return "evaluations with the same random numbers give other rewards" if evaluations_move(run) else ""


def disagreement(run: JudgedRun) -> Verdict | None:
    """Judge whether the reward rises while another measure of quality falls, both by more than 3 standard errors."""
    reward = _reward(run)
    others = {name: series for name, series in run.metrics.items() if _is_second(name) and len(series.known) > 1}
    if reward is None or run.is_supervised or not (others or any(map(_is_measured, run.metrics))):
        return None
    rise = shift(reward)
    lost = [name for name, series in run.metrics.items() if _is_measured(name) and _has_collapsed(series)]
    if rise > 3 and lost:
        return _exploited(run, reward, lost[0])
    falls = {name: by for name, series in others.items() if (by := _fall(series)) < -3}
    if rise <= 3 or not falls:
        return Verdict(
            "Rewards agree", "good",
            f"reward/mean moved by {rise:+.1f} standard errors; none of "
            f"{', '.join(others) or 'the metrics of metric_fn'} fell while it rose",
        )  # fmt: skip
    worst = min(falls, key=lambda name: falls[name])
    series = others[worst]
    first, late = start(series), float(series.late.mean())
    middle = (first + late) / 2
    return Verdict(
        "The reward rises while another falls", "bad",
        f"reward/mean went from {start(reward):.3g} to {reward.late.mean():.3g}, {worst} from {first:.3g} to "
        f"{late:.3g}",
        "The reward may be exploited, or the policy fits the training prompts only: read completions, raise the KL "
        "coefficient, stop at the best evaluation (checkpoint.keep_best), or change the weights of the rewards.",
        causes.DISAGREE, first_lasting(series, lambda values: values < middle), "data.reward_fn",
        f"a larger weight of {worst.rpartition('/')[2].partition('@')[0]}",
    )  # fmt: skip


def _exploited(run: JudgedRun, reward: Series, name: str) -> Verdict:
    """Return the verdict of a reward that rises while a metric of `metric_fn` falls to almost nothing."""
    series = run.metrics[name]
    first, limit = start(series), COLLAPSED_SHARE * start(series)
    return Verdict(
        "A metric collapses while the reward rises", "warning",
        f"reward/mean went from {start(reward):.3g} to {reward.late.mean():.3g}, {name} from {first:.3g} to "
        f"{series.known[-1]:.3g}",
        "The reward may be exploited: read completions, make the metric a part of the reward, or raise the KL "
        "coefficient. Ignore this if a low value of the metric is what you want.",
        causes.DISAGREE, first_lasting(series, lambda values: values <= limit), "data.reward_fn",
        f"a reward that {name.removeprefix('eval/')} is a part of",
    )  # fmt: skip


def _is_measured(name: str) -> bool:
    """Return whether a metric of evaluations is one of `metric_fn`, whose names have no group, or a success."""
    plain = name.removeprefix("eval/").partition("@")[0]
    if not name.startswith("eval/") or plain.endswith("_s"):
        return False
    return plain == "episode/success" or ("/" not in plain.removesuffix("/mean") and plain not in UNJUDGED)


def _has_collapsed(series: Series) -> bool:
    """Return whether all values but the first ones are below a tenth of them at the end."""
    if len(series.known) < 2 or not start(series) > 0:
        return False
    return float(series.late.max()) <= COLLAPSED_SHARE * start(series)


def _fall(series: Series) -> float:
    """Return the shift; of fewer than five evaluations only if it is a third of the first value too."""
    if len(series.known) >= ENOUGH:
        return shift(series)
    first, last = series.known[0], series.known[-1]
    return -4.0 if first - last > abs(first) / 3 else 0.0


def _is_second(name: str) -> bool:
    """Return whether a metric measures quality beside `reward/mean`: a single reward, or the evaluation's."""
    plain = name.partition("@")[0]
    if plain.startswith("reward/"):
        return plain.removeprefix("reward/") not in SIDE_REWARDS
    return plain.startswith("eval/reward/") and plain.removeprefix("eval/reward/") not in SIDE_REWARDS[1:]


def entropy(run: JudgedRun) -> Verdict | None:
    """Judge whether the entropy collapsed, to a tenth and below 0.1 nats in a run not solved, or exploded."""
    series = run.series("policy/entropy")
    if series is None:
        return None
    first, late = initial(series), median(series.late)
    evidence = f"policy/entropy went from {first:.3g} to {late:.3g} nats a token"
    if late > EXPLODED_FACTOR * first and late - first > EXPLODED_NATS and not _pays(run):
        return _exploded(run, series, evidence)
    if late >= 0.1 * first or late >= 0.1:
        return Verdict("Entropy", "good", evidence)
    if run.is_solved:
        return Verdict("Entropy", "good", f"{evidence}, in a run that is solved")
    coef = run.option("trainer.entropy_coef")
    return Verdict(
        "Entropy collapsed", "bad", evidence,
        "All samples of a prompt are nearly alike before the task is solved, so nothing more is explored: set an "
        "entropy bonus, lower the learning rate, or raise the KL coefficient or gen.temperature.",
        causes.COLLAPSED, first_step(series, lambda values: values < min(0.1 * first, 0.1)), "trainer.entropy_coef",
        f"{2 * coef:.1g}" if isinstance(coef, int | float) and coef > 0 else "0.01",
    )  # fmt: skip


def _pays(run: JudgedRun) -> bool:
    """Return whether the reward rises by more than its noise, so that a wider policy is a better one."""
    reward = _reward(run)
    return run.is_nearly_solved or (reward is not None and shift(reward) > 3)


def _exploded(run: JudgedRun, series: Series, evidence: str) -> Verdict:
    first, coef = initial(series), run.option("trainer.entropy_coef")
    has_bonus = isinstance(coef, int | float) and coef > 0
    return Verdict(
        "Entropy explodes", "bad", f"{evidence}, and the reward does not rise",
        "The policy forgets how to write: tokens are drawn almost at random. Lower the entropy bonus if there is one, "
        "else the learning rate, or raise the KL coefficient, and go back to a checkpoint before.",
        causes.EXPLODED, first_lasting(series, lambda values: values > first + EXPLODED_NATS),
        *(("trainer.entropy_coef", f"{coef / 10:.1g}") if has_bonus else ("trainer.optimizer.lr", run.rate(0.1))),
    )  # fmt: skip


def value_function(run: JudgedRun) -> Verdict | None:
    """Judge whether the value function explains less than 5 % of the variance of returns, while there is some.

    Steps count whose rewards spread at least a quarter as widely as the first ones, after a tenth of the steps. In a
    solved run, the few responses that fail are chance, and to know the mean is all that can be learned.
    """
    series, spread = run.series("value/explained_variance"), run.metrics.get("reward/std")
    if series is None:
        return None
    values = series.values
    counts = np.isfinite(values) & (np.arange(len(values)) >= min(10, len(values) // 10))
    if spread is not None and len(spread.values) == len(values):
        counts &= spread.values >= float(first_values(spread).mean()) / 4
    if counts.sum() < ENOUGH:
        return Verdict("Value function", "good", "the rewards hardly vary, so there is nothing to explain")
    judged = values[counts]
    late, best = median(judged[-max(3, len(judged) // 3) :]), float(judged.max())
    evidence = f"value/explained_variance is {late:.2g} where rewards vary, and {best:.2g} at most"
    if run.is_solved and late > WORSE_THAN_MEAN:
        return Verdict("Value function", "good", f"{evidence}; solved, so that few failures are all that varies")
    if late >= 0.05 or (best >= 0.05 and late > -1):
        return Verdict("Value function", "good", evidence)
    coef = run.option("trainer.value_coef")
    return Verdict(
        "Value function explains nothing", "warning", evidence,
        "Advantages are no better than with a constant baseline: raise trainer.value_coef, give the value function "
        "layers of its own (model.value_layers), or check that rewards depend on the text.",
        causes.CRITIC, int(series.steps[counts][0]), "trainer.value_coef",
        f"{5 * coef:.1g}" if isinstance(coef, int | float) and coef > 0 else "1",
    )  # fmt: skip


GAP = 0.1
"""Mean distance of the log-probs of sampler and trainer, in nats a token, that low precision does not explain."""
RATIOS = ("policy/ratio_mean", "policy/ratio_mean_trained")
JUMP = 10.0
"""approx_kl, in nats a token, that other weights or tokens do not give, but updates that destroy the policy do."""
FIRST_RATIOS = 5
"""Ratios that must agree with each other to be off 1 from the beginning."""


def other_policy(run: JudgedRun) -> Verdict | None:
    """Judge whether another policy than the one that learns has sampled, or the mask covers other tokens.

    Signs: log-probs of sampler and trainer differ, the KL to the reference is below 0, or the mean ratio is off 1 by
    the same amount in every step from the first on (E[ratio] = 1 for samples of the old policy).
    """
    signs = [found for found in (_gap(run), _negative_kl(run), _steady_ratio(run)) if found is not None]
    if not signs:
        return None
    name = "Samples are the policy's own"
    bad = [(step, text) for step, text in signs if step is not None]
    if not bad:
        return Verdict(name, "good", "; ".join(text for _, text in signs))
    step = min(step for step, _ in bad)
    return Verdict(
        "Samples of another policy", "bad", "; ".join(text for _, text in bad),
        "The sampler keeps old weights, dropout is on, an option truncates the distribution (gen.top_k, gen.top_p), or "
        "the mask covers other tokens than those that were chosen: use the sampler `default`, and compare "
        "`policy.version` in a sampler of your own.",
        causes.OTHER_POLICY, step, "sampler", "default",
    )  # fmt: skip


def _gap(run: JudgedRun) -> tuple[int | None, str] | None:
    gap = run.series("is/logprob_gap")
    if gap is None:
        return None
    step = first_step(gap, lambda values: values > GAP) if median(gap.late) > GAP else None
    return step, f"is/logprob_gap is {median(gap.late):.2g} nats a token"


def _negative_kl(run: JudgedRun) -> tuple[int | None, str] | None:
    kl = run.series("kl/mean")
    if kl is None:
        return None
    late = median(kl.late)
    return (first_step(kl, lambda values: values < -0.1) if late < -0.1 else None), f"kl/mean is {late:.3g}"


def _steady_ratio(run: JudgedRun) -> tuple[int | None, str] | None:
    ratio, kl = run.series(*RATIOS), run.series(*APPROX_KLS)
    if ratio is None:
        return None
    if kl is not None and median(kl.known[:FIRST_RATIOS]) > JUMP:
        return None
    early = ratio.known[:FIRST_RATIOS] - 1
    centre = median(early)
    is_steady = abs(centre) > 0.1 and float(np.abs(early - centre).max()) < abs(centre) / 2
    return (int(ratio.steps[0]) if is_steady else None), f"the mean ratio begins at {1 + centre:.3g}"


def truncation(run: JudgedRun) -> Verdict | None:
    """Judge the fraction of responses that were cut at the longest length.

    Those of a nearly solved run cost no reward, if the limit leaves room: the policy has learned that length.
    """
    series = run.series("response/truncated_fraction", count=1)
    if series is None:
        return None
    late = float(series.late.mean())
    evidence = (
        f"{late:.0%} of the responses of the last fifth of the steps are truncated, {initial(series):.0%} at first"
    )
    if late <= 0.5:
        return Verdict("Responses end", "good", evidence)
    if _have_room(run, series):
        return Verdict("Solved with long responses", "good", f"{evidence}, and most have the best reward")
    longest = run.option("gen.max_new_tokens")
    value = str(2 * longest) if isinstance(longest, int) else "twice the present one"
    return Verdict(
        "Responses are truncated", "bad" if late > 0.95 else "warning", evidence,
        "The policy does not end its responses: raise gen.max_new_tokens, set gen.stop_sequences, check the "
        "tokenizer's EOS, or let the reward penalise a missing end. Ignore this if fixed lengths are the task.",
        causes.TRUNCATED, first_lasting(series, lambda values: values > 0.5) or int(series.steps[-1]),
        "gen.max_new_tokens", value,
    )  # fmt: skip


def _have_room(run: JudgedRun, truncated: Series) -> bool:
    """Return whether a run is nearly solved, and half of the responses of some step ended; if it is solved, a third."""
    ended = 1 - float(truncated.known.min())
    if run.is_solved or run.is_solved_in_evaluations:
        return run.is_nearly_solved and ended > 1 / 3
    return (run.is_nearly_solved or run.is_nearly_solved_in_evaluations) and ended > 1 / 2


def length(run: JudgedRun) -> Verdict | None:
    """Judge whether responses have become empty: at most 1.5 tokens, EOS among them, and a third of the first ones."""
    series = run.series("response/length_mean")
    if series is None:
        return None
    first, late = initial(series), median(series.late)
    evidence = f"response/length_mean went from {first:.3g} to {late:.3g} tokens"
    if late > 1.5 or late > first / 3:
        return Verdict("Length", "good", evidence)
    return Verdict(
        "Responses are empty", "bad", evidence,
        "The reward is highest for empty responses: give them the lowest reward, or set "
        "gen.min_new_tokens.",
        causes.EMPTY, first_step(series, lambda values: values <= max(1.5, first / 3)), "gen.min_new_tokens",
        str(max(2, round(first / 2))),
    )  # fmt: skip


def zero_spread(run: JudgedRun) -> Verdict | None:
    """Judge the fraction of groups whose responses all have one score; those of a solved run are as they should be."""
    series = run.series("group/zero_spread_fraction", count=1)
    if series is None:
        return None
    late = float(series.late.mean())
    evidence = f"{late:.0%} of the groups of the last fifth of the steps have responses with equal scores"
    if run.is_nearly_solved and late > 0.5:
        return Verdict("Solved", "good", f"{evidence}, because most responses are as good as the best one")
    if late <= 0.5:
        return Verdict("Groups with spread", "good", evidence)
    size = run.option("trainer.num_generations")
    return Verdict(
        "Groups without spread", "bad" if late > 0.9 else "warning", evidence,
        "Groups with equal scores teach nothing: mix prompts of other difficulty, give partial credit, sample at a "
        "higher gen.temperature or raise trainer.num_generations.",
        causes.NO_SPREAD, first_step(series, lambda values: values > 0.5), "trainer.num_generations",
        str(2 * size) if isinstance(size, int) else "twice the present one",
    )  # fmt: skip
