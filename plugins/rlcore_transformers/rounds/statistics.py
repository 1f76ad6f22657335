"""Statistics of the tokens of a round, which may be scattered: the same numbers on every process.

Also in this file: importance weights of responses whose sampler computed other log-probs than the trainer; signs that a
round of responses is no sample of the policy that learns from it.
"""

from __future__ import annotations

import torch
from torch import Tensor

from rlcore import ops
from rlcore.training import Run
from rlcore.types import Metrics, Trajectories
from rlcore_transformers.rounds.scattered import ScatteredRound


def own_rows(batch: Trajectories) -> Trajectories:
    """Return the sequences of a round whose tokens this process has: all of them unless the round is scattered."""
    return batch.own() if isinstance(batch, ScatteredRound) else batch


def token_sums(batch: Trajectories, values: Tensor) -> Tensor:
    """Return the sum of numbers over the chosen tokens of each sequence of a round: float64[B].

    All processes call this together.

    Args:
        batch: the round, of B sequences.
        values: [K, T], of the sequences of `own_rows(batch)`; other entries may be anything.
    """
    return everywhere(batch, values.double().masked_fill(~own_rows(batch).action_mask, 0.0).sum(1))


def token_mean(batch: Trajectories, values: Tensor) -> float:
    """Return the mean of numbers over all chosen tokens of a round; all processes call this together.

    Args:
        batch: the round.
        values: [K, T], of the sequences of `own_rows(batch)`; other entries may be anything.
    """
    if isinstance(batch, ScatteredRound):
        return float(token_sums(batch, values).sum() / batch.num_actions.sum())
    return float(values[batch.action_mask].double().mean())


def whiten(batch: Trajectories, values: Tensor, *, min_std: float) -> Tensor:
    """Whiten numbers over all chosen tokens of a round (`rlcore.ops.whiten`); all processes call this together.

    Args:
        batch: the round.
        values: float[K, T], of the sequences of `own_rows(batch)`.
        min_std: smallest divisor.
    """
    if not isinstance(batch, ScatteredRound):
        return ops.whiten(values, batch.action_mask, min_std=min_std)
    mean = token_mean(batch, values)
    std = token_mean(batch, (values.double() - mean) ** 2) ** 0.5
    whitened: Tensor = (values - mean) / max(std, min_std)
    return whitened.masked_fill(~batch.own().action_mask, 0.0)


def everywhere(batch: Trajectories, values: Tensor) -> Tensor:
    """Return a number of each sequence of a round, [B], given those of `own_rows(batch)`; collective."""
    return batch.everywhere(values) if isinstance(batch, ScatteredRound) else values


def with_token_columns(batch: Trajectories, **columns: Tensor) -> Trajectories:
    """Return the same round with columns per token added, each given for `own_rows(batch)`."""
    return batch.with_own(**columns) if isinstance(batch, ScatteredRound) else batch.with_columns(**columns)


def correction(
    old_logprobs: Tensor, sampled_logprobs: Tensor, mask: Tensor, *, kind: str, low: float, high: float
) -> Tensor:
    """Return weights for tokens whose sampler computed other log-probs than the trainer: float[B, T].

    With d = log pi_old - log pi_sampler: `token_truncate` clip(exp d_t, low, high); `token_mask` exp d_t inside
    [low, high], else 0; `sequence_truncate` and `sequence_mask` the same with exp(sum_t d_t); `geometric_mask` 1 where
    exp(mean_t d_t) lies inside, else 0.

    They correct the expectation over samples, apart from a clipped ratio, whose old policy is the trainer's. Yao et al.
    2025, "Your Efficient RL Framework Secretly Brings You Off-Policy RL Training".

    Args:
        old_logprobs: float[B, T], the trainer's.
        sampled_logprobs: float[B, T], the sampler's.
        mask: bool[B, T].
        kind: one of the above.
        low: smallest weight.
        high: largest weight.

    Raises:
        ValueError: `kind` is none of the above.
    """
    gap = torch.where(mask, old_logprobs - sampled_logprobs, 0.0)
    subject, _, action = kind.partition("_")
    if subject == "sequence":
        gap = gap.sum(1, keepdim=True).expand_as(gap)
    elif subject == "geometric":
        gap = (gap.sum(1, keepdim=True) / mask.sum(1, keepdim=True).clamp(min=1)).expand_as(gap)
    elif subject != "token":
        raise ValueError(f"kind = {kind!r}: no such correction")
    weight = gap.exp()
    inside = (weight >= low) & (weight <= high)
    if subject == "geometric":
        return inside.float()
    return weight.clamp(low, high) if action == "truncate" else weight.where(inside, 0.0)


def weight_metrics(batch: Trajectories) -> Metrics:
    """Return the metrics of the column `is_weights` over all chosen tokens of a round, if it has one; collective."""
    rows = own_rows(batch)
    if "is_weights" not in rows:
        return {}
    is_empty, weights = not bool(batch.num_actions.any()), rows["is_weights"]
    return {
        "is/weight_mean": 0.0 if is_empty else token_mean(batch, weights),
        "is/masked_fraction": 0.0 if is_empty else token_mean(batch, weights == 0),
    }


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
