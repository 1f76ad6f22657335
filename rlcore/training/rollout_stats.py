"""Metrics of sampled responses: their rewards, their lengths, and how many were cut."""

from __future__ import annotations

from torch import Tensor

from rlcore.ranks import Ranks
from rlcore.rewards.score import Scored
from rlcore.types import Metrics, Trajectories


def rollout_metrics(batch: Trajectories, scored: Scored, ranks: Ranks) -> Metrics:
    """Return the metrics of a round of responses.

    Args:
        batch: the whole round, the same on all ranks, with the column `scores`.
        scored: this rank's share as `run.rollout` returned it; where there are several reward functions, the mean of
            each is `reward/<name>`.
        ranks: the means of single functions are taken over all of them.
    """
    by_name = ranks.average(scored.by_name) if len(scored.by_name) > 1 else {}
    return {
        **reward_metrics(batch["scores"]),
        **response_metrics(batch.num_actions.float(), batch.ended.float()),
        **{f"reward/{name}": mean for name, mean in by_name.items()},
    }


def reward_metrics(scores: Tensor) -> Metrics:
    """Return mean, population standard deviation, minimum and maximum of float[B] scores."""
    return {
        "reward/mean": float(scores.mean()),
        "reward/std": float(scores.std(correction=0)),
        "reward/min": float(scores.min()),
        "reward/max": float(scores.max()),
    }


def response_metrics(lengths: Tensor, ended: Tensor) -> Metrics:
    """Return the mean length of responses and the share of those that were cut, from float[B] lengths and ends."""
    return {
        "response/length_mean": float(lengths.mean()),
        "response/truncated_fraction": 1.0 - float(ended.mean()),
    }
