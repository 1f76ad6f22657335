"""Rules on what is sampled: whether the policy that learns has sampled it, its lengths, ends and groups."""

from __future__ import annotations

import numpy as np

from rlcore_report.health import causes
from rlcore_report.health.judged_run import JudgedRun, Verdict
from rlcore_report.health.trends import first_lasting, first_step, initial, median
from rlcore_report.series import Series

GAP = 0.1
"""Mean distance of the log-probs of sampler and trainer, in nats a token, that low precision does not explain."""
RATIOS = ("policy/ratio_mean", "policy/ratio_mean_trained")
APPROX_KLS = ("policy/approx_kl", "policy/approx_kl_trained")
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
