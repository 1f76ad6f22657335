"""Means over held-out samples, measured as training measures its batches."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from rlcore.dropout import eval_mode
from rlcore.optim.batches import Meter, micro_batches
from rlcore.protocols import Policy
from rlcore.ranks import Ranks
from rlcore.types import Metrics, Sample, Trajectories, stack_samples


@torch.no_grad()
def validate(
    policy: Policy,
    samples: Sequence[Sample],
    measure: Callable[[Trajectories], Mapping[str, Tensor]],
    ranks: Ranks,
    *,
    batch_size: int,
    size: int = 0,
    tokens: int = 0,
) -> Metrics:
    """Return the mean of each metric over the chosen tokens of `samples`, with the policy in evaluation mode.

    Args:
        policy: what `measure` calls.
        samples: the same on all ranks.
        measure: returns the metrics of a micro-batch, each float[B, T].
        ranks: each measures its share.
        batch_size: samples that are padded together, on all ranks.
        size: samples of one forward pass on a rank at the most; 0 sets no bound.
        tokens: tokens of one forward pass at the most, padding included; 0 sets no bound.
    """
    meter = Meter(ranks)
    with eval_mode(policy.module):
        for start in range(0, len(samples), batch_size):
            batch = stack_samples(samples[start : start + batch_size]).to(ranks.device)
            for part, _ in micro_batches(batch, size, ranks, tokens=tokens):
                meter.add(part.action_mask, measure(part))
    return meter.means()
