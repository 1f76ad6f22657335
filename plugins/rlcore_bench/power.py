"""How small a change a number of pairs can show.

The test is that of `measure`: Student's t of N paired differences, whose standard deviation is that of one run times
the square root of 2. A change is called visible if it would be found in 80 of 100 comparisons (`POWER`).

Pairs that are added until their noise is small enough end too often where the noise looks smaller than it is: with the
level of 5 %, up to 8 % of such comparisons of equal versions found a difference, 12 % if two pairs could be enough.
`REPEATED_LEVEL` and `FEWEST_PAIRS` keep that below 5 %, by simulation.
"""

from __future__ import annotations

import functools
import math

POWER = 0.8
LEVEL = 0.05
"""Share of comparisons of equal versions that find a difference."""
REPEATED_LEVEL = 0.025
"""The level of the interval where pairs are added until they are enough."""
FEWEST_PAIRS = 5
"""Pairs that can be enough."""


def quantile(pairs: int, level: float) -> float:
    """Return the bound that Student's t of pairs of equal versions exceeds, on either side, in a share `level`."""
    from scipy import stats  # takes a second to import

    return float(stats.t.ppf(1 - level / 2, pairs - 1))


def visible_change(noise: float, pairs: int, level: float = LEVEL) -> float:
    """Return the smallest change that is found with probability `POWER`, in the unit of `noise`.

    Args:
        noise: standard deviation of the paired differences, above 0.
        pairs: N, their number, at least 2.
        level: the level of the test.
    """
    return noise * _visible_in_noise(pairs, level)


@functools.lru_cache
def _visible_in_noise(pairs: int, level: float) -> float:
    """Return the smallest visible change as a multiple of the noise."""
    low, high = 0.0, 1.0
    while found_share(high, 1.0, pairs, level) < POWER:
        high *= 2
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if found_share(middle, 1.0, pairs, level) < POWER else (low, middle)
    return high


def found_share(change: float, noise: float, pairs: int, level: float = LEVEL) -> float:
    """Return the share of comparisons that find a change, by the noncentral t distribution."""
    from scipy import stats

    bound = quantile(pairs, level)
    noncentrality = change / noise * math.sqrt(pairs)
    upper = stats.nct.sf(bound, pairs - 1, noncentrality)
    lower = stats.nct.cdf(-bound, pairs - 1, noncentrality)
    return float(upper + (0.0 if math.isnan(lower) else lower))  # scipy has no value where it is far below 1e-10


def say_power(pairs: int, level: float = LEVEL) -> str:
    """Return what a number of pairs can show, for a few amounts of noise."""
    shown = ", ".join(
        f"{visible_change(math.sqrt(2) * noise, pairs, level):.0%} where runs vary by {noise:.0%}"
        for noise in (0.01, 0.03, 0.1)
    )
    return f"{pairs} seeds find, in 80 of 100 comparisons, a change of {shown}; smaller ones are mostly called the same"
