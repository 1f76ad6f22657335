"""Statistics of one metric that rules share: where it starts, how noisy it is, where it goes."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from rlcore_report.series import Floats, Series

FIRST = 3
"""Most values that count as the first ones."""


def first_values(series: Series) -> Floats:
    """Return the first value, or of thirty and more the first three: what comes later may already be the damage."""
    return series.known[: max(1, min(FIRST, len(series.known) // 10))]


def initial(series: Series) -> float:
    """Return the first value, of a metric that hardly varies between batches of the same weights."""
    return float(series.known[0])


def start(series: Series) -> float:
    """Return the mean of the first values, of a metric that varies from batch to batch, such as a reward."""
    return float(first_values(series).mean())


def median(values: Floats) -> float:
    """Return the median."""
    return float(np.median(values))


def noise(values: Floats) -> float:
    """Return the standard deviation around the trend, from the differences of neighbours; 0 of a single value."""
    return float(np.sqrt((np.diff(values) ** 2).mean() / 2)) if len(values) > 1 else 0.0


def shift(series: Series) -> float:
    """Return by how many standard errors the last fifth is above the first values; infinite without noise."""
    first, late = first_values(series), series.late
    difference = float(late.mean() - first.mean())
    error = noise(series.known) * math.sqrt(1 / len(first) + 1 / len(late))
    return difference / error if error > 0 else math.copysign(math.inf, difference) if difference else 0.0


def change_by(series: Series, total_steps: int) -> tuple[float, float]:
    """Extrapolate the straight line through a metric.

    Returns:
        The change over `total_steps`, and its standard error.
    """
    known = np.isfinite(series.values)
    steps, values = series.steps[known].astype(float), series.values[known]
    centred = steps - steps.mean()
    spread = float((centred**2).sum())
    if len(values) < 3 or not spread:
        return 0.0, math.inf
    slope = float((centred * values).sum()) / spread
    rest = values - values.mean() - slope * centred
    error = math.sqrt(float((rest**2).sum()) / (len(values) - 2) / spread)
    return slope * total_steps, error * total_steps


def first_step(series: Series, holds: Callable[[Floats], npt.NDArray[np.bool_]]) -> int | None:
    """Return the first step whose value fulfils a condition; None if there is none."""
    known = np.isfinite(series.values)
    found = np.flatnonzero(holds(series.values[known]))
    return int(series.steps[known][found[0]]) if len(found) else None


def first_lasting(series: Series, holds: Callable[[Floats], npt.NDArray[np.bool_]]) -> int | None:
    """Return the step from which a condition holds until the end; None if it does not hold at the end."""
    known = np.isfinite(series.values)
    fails = np.flatnonzero(~holds(series.values[known]))
    begin = int(fails[-1]) + 1 if len(fails) else 0
    steps = series.steps[known]
    return int(steps[begin]) if begin < len(steps) else None
