"""Count the tokens of a step, for `perf/tokens_per_s`: a run sees what it samples, and a policy what it scores.

    perf/tokens_per_s = chosen tokens of the step, on all processes / time/step_s

Chosen tokens are those the step sampled. Where it sampled none they are those of the sequences it learned from, that
is, which the policy scored with gradients; a sequence counts each time. Prompts and padding never count.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING

import attrs
import torch
from torch import Tensor

from rlcore.types import Metrics

if TYPE_CHECKING:
    from rlcore.ranks import Ranks


@attrs.define(eq=False)
class StepTokens:
    """Hold how many chosen tokens a step has sampled and learned from; on the device, so that nothing waits for it."""

    sampled: Tensor | int = 0
    learned: Tensor | int = 0

    def per_second(self, seconds: float, ranks: Ranks) -> Metrics:
        """Return `perf/tokens_per_s` of a step of all processes; nothing where there were no tokens."""
        mine = torch.tensor([float(self.sampled), float(self.learned)], dtype=torch.float64)
        sampled, learned = ranks.sum(mine).tolist()
        tokens = sampled or learned
        return {"perf/tokens_per_s": tokens / seconds} if tokens else {}


# A thread of its own begins with none: a run that a reward function makes beside this one counts for itself.
_counting: ContextVar[StepTokens | None] = ContextVar("counting", default=None)


@contextmanager
def counting() -> Iterator[StepTokens]:
    """Count what is sampled and learned from in the block."""
    tokens = StepTokens()
    before = _counting.set(tokens)
    try:
        yield tokens
    finally:
        _counting.reset(before)


def note_sampled(chosen: Tensor) -> None:
    """Note that the tokens at `chosen`, bool[B, T], were sampled."""
    tokens = _counting.get()
    if tokens is not None:
        tokens.sampled = tokens.sampled + chosen.sum()


def note_scored(chosen: Tensor) -> None:
    """Note that the tokens at `chosen`, bool[B, T], were scored: with gradients they are learned from."""
    tokens = _counting.get()
    if tokens is not None and torch.is_grad_enabled():
        tokens.learned = tokens.learned + chosen.sum()
