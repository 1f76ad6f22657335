"""Signs that a round was not sampled from the policy that learns from it, such as a sampler with stale weights."""

from __future__ import annotations

from rlcore import ops
from rlcore.training.run import Run
from rlcore.types import Metrics, Trajectories

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
        batch: the whole round, the same on all ranks, with the column `logprobs` (the learner's) and, as far as they
            are known, `sampler_logprobs` (the sampler's own) and `ref_logprobs` (the reference's), all at the sampling
            temperature.

    Returns:
        `is/logprob_gap`, the mean absolute difference of the sampler's and the learner's log-probs, if both are known.
    """
    chosen, metrics = batch.action_mask, Metrics()
    if "sampler_logprobs" in batch:
        gap = float(ops.masked_mean((batch["logprobs"] - batch["sampler_logprobs"]).abs(), chosen))
        metrics["is/logprob_gap"] = gap
        check_logprob_gap(run, gap)
    if "ref_logprobs" in batch:
        total = float(ops.masked_sum(batch["logprobs"] - batch["ref_logprobs"], chosen))
        if total < IMPROBABLE and total < PER_SAMPLE * len(batch):
            run.warn_once(
                "sampling", "the mean KL to the reference is far below 0, which samples of the policy that learns do "
                "not give: does the sampler keep old weights (policy.version)?", kl_mean=total / len(batch),
            )  # fmt: skip
    return metrics


def check_logprob_gap(run: Run, gap: float) -> None:
    """Warn, once in a run, if a mean distance of the sampler's log-probs from the learner's, in nats, is too large."""
    if not gap <= (GAP if run.is_full_precision else LOW_PRECISION_GAP):  # NaN warns too
        run.warn_once(
            "sampling", "the sampler's log-probs are not those of the policy that learns: does the sampler keep old "
            "weights (policy.version), or another temperature?", mean_gap=gap,
        )  # fmt: skip
