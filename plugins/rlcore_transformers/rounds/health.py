"""Signs that a round of responses is no sample of the policy that learns from it."""

from __future__ import annotations

from rlcore.training import Run
from rlcore.types import Metrics, Trajectories
from rlcore_transformers.rounds.statistics import own_rows, token_mean, token_sums

GAP, LOW_PRECISION_GAP = 1e-3, 5e-2
"""Mean distance of the sampler's log-probs from the learner's, in nats, above which they count as different."""
IMPROBABLE = -20.0
"""Sum of log-ratios of a round that samples of the policy fall short of with a probability of at most e^-20."""
PER_SAMPLE = -0.1
"""Mean of that sum over the samples below which it is more than rounding."""


def rollout_health(run: Run, batch: Trajectories) -> Metrics:
    """Warn, once in a run, if a round seems to be sampled from another policy than the one that learns.

    Two signs are checked: the sampler's own log-probs differ from the learner's; and the estimate of the KL to the
    reference, the sum of log(pi / ref) over the chosen tokens, is far below zero. Since E[ref / pi] = 1 for samples of
    pi, such a sum is below -a with a probability of at most e^-a (Markov's inequality).

    Args:
        run: the run.
        batch: the whole round, the same on all ranks, or a scattered one, with the column `logprobs` (the learner's)
            and, as far as they are known, `sampler_logprobs` (the sampler's own) and `ref_logprobs` (the reference's),
            all at the sampling temperature.

    Returns:
        `is/logprob_gap`, the mean absolute difference of the sampler's and the learner's log-probs, if both are known.
    """
    rows, metrics = own_rows(batch), Metrics()
    if "sampler_logprobs" in rows:
        gap = token_mean(batch, (rows["logprobs"] - rows["sampler_logprobs"]).abs())
        metrics["is/logprob_gap"] = gap
        check_logprob_gap(run, gap)
    if "ref_logprobs" in rows:
        total = float(token_sums(batch, rows["logprobs"] - rows["ref_logprobs"]).sum())
        if not _lags(run) and total < IMPROBABLE and total < PER_SAMPLE * len(batch):
            run.warn_once(
                "sampling", "the mean KL to the reference is far below 0, which samples of the policy that learns do "
                "not give: does the sampler keep old weights (policy.version)?", kl_mean=total / len(batch),
            )  # fmt: skip
    return metrics


def check_logprob_gap(run: Run, gap: float) -> None:
    """Warn, once in a run, if a mean distance of the sampler's log-probs from the learner's, in nats, is too large."""
    if not _lags(run) and not gap <= (GAP if run.models.is_full_precision else LOW_PRECISION_GAP):  # NaN warns too
        run.warn_once(
            "sampling", "the sampler's log-probs are not those of the policy that learns: does the sampler keep old "
            "weights (policy.version), or another temperature?", mean_gap=gap,
        )  # fmt: skip


def _lags(run: Run) -> bool:
    """Return whether the sampler has older weights on purpose (`run.asynchronous`)."""
    return bool(getattr(run.sampling.sampler, "lags", False))
