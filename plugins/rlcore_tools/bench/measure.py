"""What is compared of two versions: paired differences over seeds, and the words better, same and worse.

A pair is one seed, with which both versions ran. The interval is Student's of the mean of the paired differences, at
95 % or another `level`; of times and memory, of the logarithms of the ratios. A difference counts if the interval
excludes 0 and the mean difference is at least `FLOOR` of the older version's mean: with many measures, some intervals
exclude 0 by chance, mostly narrowly.

The test is Student's t of N paired differences, whose standard deviation is that of one run times
the square root of 2. A change is called visible if it would be found in 80 of 100 comparisons (`POWER`).

Pairs that are added until their noise is small enough end too often where the noise looks smaller than it is: with the
level of 5 %, up to 8 % of such comparisons of equal versions found a difference, 12 % if two pairs could be enough.
`REPEATED_LEVEL` and `FEWEST_PAIRS` keep that below 5 %, by simulation.

Also in this file: how small a change a number of pairs can show.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from statistics import stdev
from typing import Literal

import attrs

from rlcore_report.metric_groups import Series
from rlcore_report.variants import paired

FLOOR = 0.01
ROUNDING = 1e-12
"""Standard deviation of differences, as a share of the largest value, below which they vary by rounding alone."""
STEPS = "step_cpu_s"
RESOURCES = {
    STEPS: "CPU time of steps, s", "cpu_s": "CPU time in all, s", "wall_s": "wall time, s",
    "peak_rss_mb": "peak memory, MB",
}  # fmt: skip
"""The resources of a run, by their names in the figures of `timed_case`; less of each is better."""
Better = Literal["more", "less"]
Word = Literal["better", "same", "worse"]
POWER = 0.8
LEVEL = 0.05
"""Share of comparisons of equal versions that find a difference."""
REPEATED_LEVEL = 0.025
"""The level of the interval where pairs are added until they are enough."""
FEWEST_PAIRS = 5
"""Pairs that can be enough."""


@attrs.frozen
class Measure:
    """One measure of one case, in both versions.

    Attributes:
        case: the name of the case.
        name: what is measured.
        before, after: the means over seeds.
        change, low, high: the mean change and its interval: a ratio minus 1 if `is_ratio`, else a difference.
        is_ratio: whether the change is relative.
        count: the number of seeds.
        word: whether the newer version is better, the same or worse.
        visible: the smallest change that as many seeds find in 80 of 100 comparisons with the same noise.
    """

    case: str
    name: str
    before: float
    after: float
    change: float
    low: float
    high: float
    is_ratio: bool
    count: int
    word: Word
    visible: float

    @property
    def shown_change(self) -> str:
        """Return the change and its interval as text."""
        if self.is_ratio:
            return f"{self.change:+.1%} ({self.low:+.1%} to {self.high:+.1%})"
        return f"{self.change:+.3g} ({self.low:+.3g} to {self.high:+.3g})"

    @property
    def shown_visible(self) -> str:
        """Return the smallest visible change as text."""
        return f"{self.visible:.1%}" if self.is_ratio else f"{self.visible:.2g}"


def compare_resource(
    case: str, name: str, before: Sequence[float], after: Sequence[float], *, level: float = LEVEL
) -> Measure:
    """Compare times or memory by the ratios of pairs; less is better."""
    logs = [[math.log(each) for each in side] for side in (before, after)]
    found = paired(name, "seeds", *logs)
    half, visible = _half_and_visible(level, *logs)
    change, low, high = (math.expm1(log) for log in (found.mean, found.mean - half, found.mean + half))
    means = _mean(before), _mean(after)
    word = _word(low, high, large=abs(change) >= FLOOR, better="less")
    return Measure(
        case,
        name,
        *means,
        change,
        low,
        high,
        is_ratio=True,
        count=found.count,
        word=word,
        visible=math.expm1(visible),
    )


def compare_learning(
    case: str, name: str, before: Sequence[float], after: Sequence[float], *, better: Better, level: float = LEVEL
) -> Measure:
    """Compare a figure of learning by the differences of pairs."""
    found = paired(name, "seeds", before, after)
    half, visible = _half_and_visible(level, before, after)
    low, high = found.mean - half, found.mean + half
    word = _word(low, high, large=abs(found.mean) >= FLOOR * abs(found.a), better=better)
    return Measure(
        case,
        name,
        found.a,
        found.b,
        found.mean,
        low,
        high,
        is_ratio=False,
        count=found.count,
        word=word,
        visible=visible,
    )


def learning_figures(metric: str, series: Series) -> dict[str, float]:
    """Return how good a run became, and how good it was on average, which tells how fast it learned."""
    return {f"{metric}, last fifth": float(series.late.mean()), f"{metric}, whole run": float(series.known.mean())}


def _half_and_visible(level: float, before: Sequence[float], after: Sequence[float]) -> tuple[float, float]:
    """Return half the width of the interval, and the change that as many pairs find in 80 of 100 comparisons."""
    noise, count = stdev([b - a for a, b in zip(before, after, strict=True)]), len(before)
    if noise < ROUNDING * max(map(abs, (*before, *after))):
        noise = 0.0
    half = quantile(count, level) * noise / math.sqrt(count)
    return half, visible_change(noise, count, level) if noise else 0.0


def _word(low: float, high: float, *, large: bool, better: Better) -> Word:
    if not large or low <= 0 <= high:
        return "same"
    return "better" if (low > 0) == (better == "more") else "worse"


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


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
