"""Population based training: which trials go on from the checkpoint of a better one, and with which values; pure.

Jaderberg et al. 2017, arXiv:1711.09846: exploit by truncation selection, then explore by perturbation.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

from rlcore_sweep.space import LOGARITHMIC, Dimension

FACTORS = (0.8, 1.2)
"""A number is multiplied by one of these."""
RESAMPLED = 0.25
"""Share of the values that are drawn anew instead."""


def choose_donor(
    number: int, measured: Mapping[int, float], reduction: int, *, is_maximised: bool, random: Random
) -> int | None:
    """Return the trial that takes the place of another; None if that one is not among the worst.

    Of n trials, the worst and the best are ceil(n / reduction), and at most half.

    Args:
        number: the trial that has just been measured.
        measured: the metric at the same step of every trial that has reached it, by its number; nan is worst.
        reduction: one of so many trials is replaced.
        is_maximised: whether a higher metric is better.
        random: chooses among the best.
    """

    def badness(each: int) -> tuple[float, int]:
        value = measured[each]
        return (math.inf if math.isnan(value) else -value if is_maximised else value), each

    ranked = sorted(measured, key=badness)
    count = min(math.ceil(len(ranked) / reduction), len(ranked) // 2)
    if not count or number not in ranked[-count:]:
        return None
    return random.choice(ranked[:count])


def explore(dimensions: Sequence[Dimension], parameters: Mapping[str, Any], random: Random) -> dict[str, Any]:
    """Return changed parameters of the study for a trial that goes on from another with `parameters`."""
    return {each.path: _changed(each, parameters[each.path], random) for each in dimensions}


def _changed(dimension: Dimension, parameter: Any, random: Random) -> Any:
    is_drawn = random.random() < RESAMPLED
    if dimension.kind == "choice":
        labels = list(dimension.labels)
        if is_drawn:
            return random.choice(labels)
        at = labels.index(parameter) + random.choice((-1, 1))
        return labels[min(max(at, 0), len(labels) - 1)]
    return _number(dimension, _drawn(dimension, random) if is_drawn else parameter * random.choice(FACTORS))


def _drawn(dimension: Dimension, random: Random) -> float:
    if dimension.kind in LOGARITHMIC:
        return math.exp(random.uniform(math.log(dimension.low), math.log(dimension.high)))
    return random.uniform(dimension.low, dimension.high)


def _number(dimension: Dimension, number: float) -> Any:
    """Return the allowed number that is nearest."""
    number = min(max(number, dimension.low), dimension.high)
    if dimension.step is not None:
        number = dimension.low + dimension.step * round((number - dimension.low) / dimension.step)
    return dimension.value(number)
