"""Rounds of responses whose tokens stay with the process that sampled them."""

from rlcore_transformers.rounds.scattered import ScatteredRound, can_scatter, gather_statistics, join_rounds
from rlcore_transformers.rounds.statistics import (
    check_logprob_gap,
    correction,
    everywhere,
    own_rows,
    rollout_health,
    token_mean,
    token_sums,
    weight_metrics,
    whiten,
    with_token_columns,
)

__all__ = [
    "ScatteredRound",
    "can_scatter",
    "check_logprob_gap",
    "correction",
    "everywhere",
    "gather_statistics",
    "join_rounds",
    "own_rows",
    "rollout_health",
    "token_mean",
    "token_sums",
    "weight_metrics",
    "whiten",
    "with_token_columns",
]
