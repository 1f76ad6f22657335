"""Metrics of a round of responses: their rewards, their lengths, and the share that was truncated."""

from __future__ import annotations

from rlcore.ranks import Ranks
from rlcore.rewards.score import Scored
from rlcore.types import Metrics, Trajectories


def rollout_metrics(batch: Trajectories, scored: Scored, ranks: Ranks) -> Metrics:
    """Return the metrics of a round of responses.

    Args:
        batch: the whole round, the same on all ranks, with the column `scores`.
        scored: this rank's share as `run.rollout` returned it. With several reward functions, `reward/<name>` is the
            mean of each.
        ranks: the means of single functions are taken over all of them.
    """
    scores, by_name = batch["scores"], scored.by_name
    return {
        "reward/mean": float(scores.mean()),
        "reward/std": float(scores.std(correction=0)),
        "reward/min": float(scores.min()),
        "reward/max": float(scores.max()),
        "response/length_mean": float(batch.num_actions.float().mean()),
        "response/truncated_fraction": 1.0 - float(batch.ended.float().mean()),
        **{f"reward/{name}": mean for name, mean in (ranks.average(by_name) if len(by_name) > 1 else {}).items()},
    }
