"""From scores to rewards: clipping, scaling, the KL penalty, and the two small states that adapt."""

from __future__ import annotations

from typing import Any, Literal

import attrs
import torch
from torch import Tensor

from rlcore import ops
from rlcore.types import Trajectories


@attrs.define
class KLCoefficient:
    """Hold the weight of the KL penalty, and adapt it to a target KL if one is set.

    beta <- beta (1 + clip(KL / target - 1, -0.2, 0.2) n / horizon), once per round of n responses.
    Ziegler et al. 2019, arXiv:1909.08593, section 2.2.
    """

    value: float
    target: float | None
    horizon: int
    initial: float = attrs.field(init=False, default=attrs.Factory(lambda self: self.value, takes_self=True))

    def update(self, kl: float, num_responses: int) -> None:
        """Adapt the weight to a round whose mean KL per response was `kl` nats."""
        if self.target is not None:
            error = min(max(kl / self.target - 1.0, -0.2), 0.2)
            self.value *= 1.0 + error * num_responses / self.horizon

    def state_dict(self) -> dict[str, Any]:
        """Return the weight and its initial value."""
        return {"value": self.value, "initial": self.initial}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a weight that has adapted, unless the configuration has another initial value now."""
        if self.target is not None and state["initial"] == self.initial:
            self.value = state["value"]


@attrs.define
class ScoreScale:
    """Divide scores by a standard deviation: of all seen so far, of the first round, or by 1.

    The deviation is unbiased, accumulated by the parallel form of Welford's method (Chan et al. 1979), and includes the
    round it is applied to; scores are not centred. With fewer than two scores, or all equal, they are left as they are.
    """

    mode: Literal["none", "running", "first"]
    count: int = 0
    mean: float = 0.0
    squares: float = 0.0

    def divisor(self, scores: Tensor) -> float:
        """Add a round's scores, float[B], and return the divisor of them."""
        if self.mode == "none":
            return 1.0
        if self.mode == "running" or not self.count:
            self._add(scores.double())
        deviation = (self.squares / (self.count - 1)) ** 0.5 if self.count > 1 else 0.0
        return deviation if deviation > 0 else 1.0

    def _add(self, scores: Tensor) -> None:
        count, mean = len(scores), float(scores.mean())
        squares, difference = float(((scores - mean) ** 2).sum()), mean - self.mean
        total = self.count + count
        self.squares += squares + difference**2 * self.count * count / total
        self.mean += difference * count / total
        self.count = total

    def state_dict(self) -> dict[str, Any]:
        """Return the moments."""
        return {"count": self.count, "mean": self.mean, "squares": self.squares}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore the moments that `state_dict` returned."""
        self.count, self.mean, self.squares = state["count"], state["mean"], state["squares"]


def token_scores(
    totals: Tensor, dense: Tensor | None, batch: Trajectories, *, low: float | None, high: float | None, penalty: float
) -> Tensor:
    """Turn scores into rewards per token: each at the last chosen token, EOS included, or token by token where dense.

    Args:
        totals: float[B], the score of each response; ignored where `dense` is given.
        dense: float[B, T] or None.
        batch: B responses; `penalty` is subtracted from the score of truncated ones before the bounds apply.
        low: lower bound of a score (of each dense reward), None for none.
        high: upper bound.
        penalty: for a truncated response.

    Returns:
        float[B, T], zero where no token was chosen.
    """
    penalties = penalty * (~batch.ended).to(totals.dtype)
    if dense is None:
        return ops.place_last(bound(totals - penalties, low, high), batch.action_mask)
    return bound(dense - ops.place_last(penalties, batch.action_mask), low, high).masked_fill(~batch.action_mask, 0.0)


def bound(scores: Tensor, low: float | None, high: float | None) -> Tensor:
    """Clamp scores to the bounds that are given."""
    return scores if low is None and high is None else torch.clamp(scores, low, high)
