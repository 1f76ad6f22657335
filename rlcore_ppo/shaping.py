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
    """Hold the weight of the KL penalty, and move it towards a target KL where one is set.

    beta <- beta (1 + clip(KL / target - 1, -0.2, 0.2) n / horizon), once per round of n responses.
    Ziegler et al. 2019, arXiv:1909.08593, section 2.2.
    """

    value: float
    target: float | None
    horizon: int

    def update(self, kl: float, num_responses: int) -> None:
        """Take account of a round whose mean KL per response was `kl` nats."""
        if self.target is not None:
            error = min(max(kl / self.target - 1.0, -0.2), 0.2)
            self.value *= 1.0 + error * num_responses / self.horizon


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
        """Take a round's scores, float[B], into account and return what to divide them by."""
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
        """Go back to where `state_dict` was taken."""
        self.count, self.mean, self.squares = state["count"], state["mean"], state["squares"]


def token_scores(
    totals: Tensor, dense: Tensor | None, batch: Trajectories, *, low: float | None, high: float | None, penalty: float
) -> Tensor:
    """Put scores where they are earned: each at its last chosen token, EOS included, or slot by slot where dense.

    Args:
        totals: float[B], the score of each response; ignored where `dense` is given.
        dense: float[B, T] or None.
        batch: B responses; the score of those that were cut is lowered by `penalty` before it is bounded.
        low: lower bound of a score (of each dense reward), None for none.
        high: upper bound.
        penalty: for a response without an end of its own.

    Returns:
        float[B, T], zero where no token was chosen.
    """
    cut = penalty * (~batch.ended).to(totals.dtype)
    if dense is None:
        return ops.place_last(bound(totals - cut, low, high), batch.action_mask)
    return bound(dense - ops.place_last(cut, batch.action_mask), low, high).masked_fill(~batch.action_mask, 0.0)


def bound(scores: Tensor, low: float | None, high: float | None) -> Tensor:
    """Clamp scores from either side, where a bound is given."""
    return scores if low is None and high is None else torch.clamp(scores, low, high)
