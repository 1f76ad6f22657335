"""How small a change a number of pairs can show.

The test is that of `measure`: Student's t of N paired differences, whose standard deviation is that of one run times
the square root of 2. A change is called visible if it would be found in 80 of 100 comparisons (`POWER`).
"""

from __future__ import annotations

import functools
import math

POWER = 0.8
LEVEL = 0.05


def visible_change(noise: float, pairs: int) -> float:
    """Return the smallest change that is found with probability `POWER`, in the unit of `noise`.

    Args:
        noise: standard deviation of the paired differences, above 0.
        pairs: N, their number, at least 2.
    """
    return noise * _visible_in_noise(pairs)


@functools.lru_cache
def _visible_in_noise(pairs: int) -> float:
    """Return the smallest visible change as a multiple of the noise."""
    low, high = 0.0, 1.0
    while found_share(high, 1.0, pairs) < POWER:
        high *= 2
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if found_share(middle, 1.0, pairs) < POWER else (low, middle)
    return high


def found_share(change: float, noise: float, pairs: int) -> float:
    """Return the share of comparisons that find a change, by the noncentral t distribution."""
    from scipy import stats  # takes a second to import

    bound = stats.t.ppf(1 - LEVEL / 2, pairs - 1)
    noncentrality = change / noise * math.sqrt(pairs)
    upper = stats.nct.sf(bound, pairs - 1, noncentrality)
    lower = stats.nct.cdf(-bound, pairs - 1, noncentrality)
    return float(upper + (0.0 if math.isnan(lower) else lower))  # scipy has no value where it is far below 1e-10


def say_power(pairs: int) -> str:
    """Return what a number of pairs can show, for a few amounts of noise."""
    shown = ", ".join(
        f"{visible_change(math.sqrt(2) * noise, pairs):.0%} where runs vary by {noise:.0%}"
        for noise in (0.01, 0.03, 0.1)
    )
    return f"{pairs} seeds find, in 80 of 100 comparisons, a change of {shown}; smaller ones are mostly called the same"
