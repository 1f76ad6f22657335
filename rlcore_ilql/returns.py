"""Standardised returns: the scale of rewards no longer depends on the user's units."""

from __future__ import annotations

from collections.abc import Sequence

import attrs
import torch

from rlcore.logging import get_logger
from rlcore.types import Sample, SampleReward

ROUNDING = 1e-12
"""Returns that differ by less than this share of the largest count as equal: they differ by rounding only."""


@attrs.frozen
class Returns:
    """Hold the rewards of a data set as they are learned from, and the statistics of the original returns.

    Attributes:
        rewards: for each sample one number for each of its tokens.
        mean: mean of the samples' undiscounted returns, as given.
        std: their unbiased standard deviation; 0 if they differ by rounding only.
    """

    rewards: list[tuple[float, ...]]
    mean: float
    std: float


def read_returns(given: Sequence[SampleReward], samples: Sequence[Sample], *, standardise: bool) -> Returns:
    """Measure the returns of a data set and, if requested, standardise them: (R - mean R) / std R, on the last token.

    If any sample has dense rewards, all are divided by std R and none is centred: the mean would have to be subtracted
    from some token, which would assign reward to it.
    """
    totals = torch.tensor([each.total for each in given], dtype=torch.float64)
    differ = float(totals.max() - totals.min()) > ROUNDING * float(totals.abs().max())
    mean, std = float(totals.mean()), float(totals.std()) if differ else 0.0
    rewards = [each.tokens for each in given]
    if standardise and not differ:
        get_logger("ilql").warning(
            "all returns are equal, so there is no scale to bring them to: they stay as they are, and no sample is "
            "better than another",
            returns=mean, samples=len(given),
        )  # fmt: skip
    elif standardise:
        centre = 0.0 if any(each.dense for each in given) else mean
        rewards = [_scaled(each.tokens, sample, centre, std) for each, sample in zip(given, samples, strict=True)]
    return Returns(rewards, mean, std)


def _scaled(rewards: Sequence[float], sample: Sample, centre: float, std: float) -> tuple[float, ...]:
    last = max(t for t, chosen in enumerate(sample.action_mask) if chosen)
    return tuple((reward - centre * (t == last)) / std for t, reward in enumerate(rewards))
