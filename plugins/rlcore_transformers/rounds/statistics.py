"""Statistics of the tokens of a round, which may be scattered: the same numbers on every process."""

from __future__ import annotations

from torch import Tensor

from rlcore import ops
from rlcore.types import Trajectories
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
