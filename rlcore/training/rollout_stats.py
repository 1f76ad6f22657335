"""Gather a round of responses from all processes, and its metrics."""

from __future__ import annotations

import attrs
import torch

from rlcore.errors import RewardError
from rlcore.logging import get_logger
from rlcore.ranks import Ranks
from rlcore.rewards.combine import Scored
from rlcore.training.run import Run
from rlcore.types import Metrics, Trajectories

HAS_SCORE = "has_score"
"""Column of `gather_round`: bool[B], True for responses to which a reward function gave a number."""


def gather_round(
    run: Run, batch: Trajectories, scored: Scored, *, at_least: int = 1, group: int = 1
) -> tuple[Trajectories, Metrics]:
    """Return the responses of a round that have a score, from all processes, and the metrics of the whole round.

    A response for which every reward function returned None has no score: it is left out, and counted in the metric
    `reward/unscored`. In groups it stays, so that all groups have one size, and the column `has_score` is False for it.

    Args:
        run: the run.
        batch: this rank's share of the round, with any columns.
        scored: the same responses as `run.rollout` or `run.sampling.score` returned them.
        at_least: responses with a score that the trainer needs.
        group: so many consecutive responses were dealt together (`Ranks.share`).

    Returns:
        The responses, with the column `scores`, in the same order on every rank; the metrics of `rollout_metrics`.

    Raises:
        RewardError: fewer than `at_least` responses have a score.
    """
    run.sampling.check_round()
    has_score = torch.tensor(
        [score is not None for score in scored.totals], dtype=torch.bool, device=batch.tokens.device
    )
    batch = run.ranks.gather_batch(batch.with_columns(scores=scored.scores, **{HAS_SCORE: has_score}), group=group)
    metrics, kept = rollout_metrics(batch, scored, run.ranks), batch[HAS_SCORE]
    num_kept = int(kept.sum())
    if num_kept < at_least:
        raise RewardError(
            f"step {run.step + 1}: {len(batch) - num_kept} of {len(batch)} responses have no score, and "
            f"{run.config.trainer.get('name')} learns from at least {at_least}: the reward functions gave None for "
            "them, or their episodes failed; give some responses a number"
        )
    if group > 1:
        return batch, metrics
    batch = attrs.evolve(batch, columns={name: each for name, each in batch.columns.items() if name != HAS_SCORE})
    return batch if num_kept == len(batch) else batch.rows(kept), metrics


def rollout_metrics(batch: Trajectories, scored: Scored, ranks: Ranks) -> Metrics:
    """Return the metrics of a round of responses.

    Args:
        batch: the whole round, the same on all ranks, with the column `scores`; with a column `has_score`, bool[B], the
            scores of other responses are not counted.
        scored: this rank's share as `run.rollout` returned it. With several reward functions, `reward/<name>` is the
            mean of each over the responses to which it applies.
        ranks: the means of single functions are taken over all of them.
    """
    scores, by_name = batch["scores"], scored.by_name
    if HAS_SCORE in batch and not bool(batch[HAS_SCORE].all()):
        scores = scores[batch[HAS_SCORE]]
    metrics: Metrics = {}
    if len(scores):
        metrics = {
            "reward/mean": float(scores.mean()),
            "reward/std": float(scores.std(correction=0)),
            "reward/min": float(scores.min()),
            "reward/max": float(scores.max()),
        }
    # A process may lack some, or all, of the metrics of episodes.
    names = sorted(set(ranks.gather(list(scored.numbers))))
    return {
        **metrics,
        "reward/unscored": float(len(batch) - len(scores)),
        "response/length_mean": float(batch.num_actions.float().mean()),
        "response/truncated_fraction": 1.0 - float(batch.ended.float().mean()),
        **(ranks.average({name: scored.numbers.get(name, []) for name in names}) if names else {}),
        **{f"reward/{name}": mean for name, mean in (ranks.average(by_name) if len(by_name) > 1 else {}).items()},
    }


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
        "sampler": not getattr(run.sampling.sampler, "draws_from_policy", True),
    }
    if any(found.values()):
        get_logger("sampling").warning(
            "responses are not sampled from the policy that learns, so its gradient is biased: leave these options out "
            "while training (those of gen may be set in eval.gen, for evaluations)",
            because=", ".join(name for name, is_set in found.items() if is_set),
        )
