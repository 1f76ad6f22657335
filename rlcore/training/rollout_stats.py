"""Metrics of a round of responses, and signs that it is no sample of the policy that learns from it."""

from __future__ import annotations

from rlcore.logging import get_logger
from rlcore.ranks.rounds import Round
from rlcore.training.run import Run
from rlcore.types import Metrics


def warn_of_bias(run: Run) -> None:
    """Log a warning if the policy gradient of the run's responses is biased; a trainer calls this once, when built.

    Responses are then no samples of softmax(logits / temperature). Trainers take log-probs at the sampling temperature
    and over the whole vocabulary. Truncation (`gen.top_k`, `gen.top_p`), `gen.min_new_tokens` and a logit mask restrict
    sampling to some of the tokens, `gen.beta` shifts the logits, greedy sampling takes only the most likely token, and
    a sampler may sample from another distribution.
    """
    gen = run.config.gen
    found = {
        "gen.temperature = 0": not gen.temperature,
        "gen.top_k": gen.top_k > 0,
        "gen.top_p": gen.top_p < 1,
        "gen.min_new_tokens": gen.min_new_tokens > 0,
        "gen.beta": bool(gen.beta),
        "logit_mask": run.data.inputs.logit_mask is not None,
        "sampler": not run.sampling.traits.draws_from_policy,
    }
    if any(found.values()):
        get_logger("sampling").warning(
            "responses are not sampled from the policy that learns, so its gradient is biased: leave these options out "
            "while training (those of gen may be set in eval.gen, for evaluations)",
            because=", ".join(name for name, is_set in found.items() if is_set),
        )


def weight_metrics(batch: Round) -> Metrics:
    """Return the metrics of the column `is_weights` over all chosen tokens of a round, if it has one; collective."""
    rows = batch.own
    if "is_weights" not in rows:
        return {}
    is_empty, weights = not bool(batch.num_actions.any()), rows["is_weights"]
    return {
        "is/weight_mean": 0.0 if is_empty else batch.mean(weights),
        "is/masked_fraction": 0.0 if is_empty else batch.mean(weights == 0),
    }


GAP, LOW_PRECISION_GAP = 1e-3, 5e-2
"""Mean distance of the sampler's log-probs from the learner's, in nats, above which they count as different."""
IMPROBABLE = -20.0
"""Sum of log-ratios of a round that samples of the policy fall short of with a probability of at most e^-20."""
PER_SAMPLE = -0.1
"""Mean of that sum over the samples below which it is more than rounding."""


def rollout_health(run: Run, batch: Round) -> Metrics:
    """Warn, once in a run, if a round seems to be sampled from another policy than the one that learns.

    Two signs are checked: the sampler's own log-probs differ from the learner's; and the estimate of the KL to the
    reference, the sum of log(pi / ref) over the chosen tokens, is far below zero. Since E[ref / pi] = 1 for samples of
    pi, such a sum is below -a with a probability of at most e^-a (Markov's inequality).

    Args:
        run: the run.
        batch: the round, with the column `logprobs` (the learner's) and, as far as they are known, `sampler_logprobs`
            (the sampler's own) and `ref_logprobs` (the reference's), all at the sampling temperature.

    Returns:
        `is/logprob_gap`, the mean absolute difference of the sampler's and the learner's log-probs, if both are known.
    """
    rows, metrics = batch.own, Metrics()
    if "sampler_logprobs" in rows:
        gap = batch.mean((rows["logprobs"] - rows["sampler_logprobs"]).abs())
        metrics["is/logprob_gap"] = gap
        check_logprob_gap(run, gap)
    if "ref_logprobs" in rows:
        total = float(batch.sums(rows["logprobs"] - rows["ref_logprobs"]).sum())
        if not run.sampling.traits.lags and total < IMPROBABLE and total < PER_SAMPLE * len(batch):
            run.warn_once(
                "sampling", "the mean KL to the reference is far below 0, which samples of the policy that learns do "
                "not give: does the sampler keep old weights (policy.version)?", kl_mean=total / len(batch),
            )  # fmt: skip
    return metrics


def check_logprob_gap(run: Run, gap: float) -> None:
    """Warn, once in a run, if a mean distance of the sampler's log-probs from the learner's, in nats, is too large."""
    most = GAP if run.models.is_full_precision else LOW_PRECISION_GAP
    if not run.sampling.traits.lags and not gap <= most:  # NaN warns too
        run.warn_once(
            "sampling", "the sampler's log-probs are not those of the policy that learns: does the sampler keep old "
            "weights (policy.version), or another temperature?", mean_gap=gap,
        )  # fmt: skip
