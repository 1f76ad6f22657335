"""What a rule reads, a run's metrics and options, and what it returns, a verdict.

Also in this file: statistics of one metric that rules share: where it starts, how noisy it is, where it goes; what
can be wrong with a run: the causes that verdicts name, and that the labelled runs have.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import Any, Literal

import attrs
import numpy as np
import numpy.typing as npt

from rlcore_report.metric_groups import Floats, Series

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


ENOUGH = 5
"""Values below which nothing is said about a trend."""
SOLVED_SHARE = 0.95
"""A run is solved if the mean reward has covered this share of the way from its first values to the best response."""
MOST_EPOCHS = 1e12
"""The most that run.epochs may be; a file that was edited by hand may have more, or what is no number."""
FEW_STEPS = 10
"""Steps of a run that goes on, before which trends are not judged."""
LARGEST_FACTOR = 10.0
"""Most by which a learning rate is to be changed at once."""
NEARLY_SOLVED_SHARE = 0.9
"""It is nearly solved from here on: most responses are as good as the best one."""


@attrs.frozen
class Verdict:
    """The result of one check.

    Attributes:
        name: what was checked.
        level: `good`, `warning`, or `bad` if the run probably learns nothing of use.
        evidence: the numbers behind it.
        advice: what to do; empty if all is well.
        cause: the likely cause, one of `rlcore_report.health.judged_run`; empty if all is well.
        step: the first step at which it went wrong; None if all is well, or if no step can be named.
        option: the option to change; empty if there is none.
        value: its new value.
        follows: the name of the verdict that it follows from; empty if it is a cause itself.
    """

    name: str
    level: Literal["good", "warning", "bad"]
    evidence: str
    advice: str = ""
    cause: str = ""
    step: int | None = None
    option: str = ""
    value: str = ""
    follows: str = ""


@attrs.frozen(eq=False, slots=False)
class JudgedRun:
    """A run as rules see it.

    Attributes:
        metrics: every metric, by its name.
        config: the resolved configuration, or a part of it; options that it lacks are None.
        prompts: the prompts of each step with rollouts.
        planned: steps that the run will make; 0 if unknown.
    """

    metrics: Mapping[str, Series]
    config: Mapping[str, Any] = attrs.field(factory=dict)
    prompts: Sequence[Sequence[str]] = ()
    planned: int = 0

    def series(self, *names: str, count: int = ENOUGH) -> Series | None:
        """Return the first of some metrics that has `count` finite values or more."""
        found = (self.metrics[name] for name in names if name in self.metrics)
        return next((series for series in found if len(series.known) >= count), None)

    def option(self, path: str) -> Any:
        """Return an option of the configuration, by its path, such as `trainer.optimizer.lr`."""
        inner: object = self.config
        for part in path.split("."):
            inner = inner.get(part) if isinstance(inner, Mapping) else None
        return inner

    @cached_property
    def last_step(self) -> int:
        """Return the last step with metrics."""
        return max((int(series.steps[-1]) for series in self.metrics.values() if len(series.steps)), default=0)

    @cached_property
    def budget(self) -> int | None:
        """Return the steps that the run is to make, as far as its options say so; None if they do not."""
        steps, epochs, passes = self.planned or self.option("run.steps"), self.option("run.epochs"), self.passes
        is_counted = isinstance(epochs, int | float) and 0 < epochs <= MOST_EPOCHS and passes > 0
        by_epochs = math.ceil(epochs * self.last_step / passes) if is_counted else None
        return min((each for each in (steps, by_epochs) if each and isinstance(each, int)), default=None)

    @cached_property
    def passes(self) -> float:
        """Return how many times the run has seen its rows or prompts; 0 if it is unknown."""
        series = self.series("progress/epoch", count=1)
        return float(series.known[-1]) if series is not None else 0.0

    @property
    def is_timed(self) -> bool:
        """Return whether only time limits the run, so that the number of its steps is unknown until it ends."""
        return self.budget is None and bool(self.option("run.time_s"))

    @cached_property
    def total_steps(self) -> int:
        """Return the planned number of steps, or those done if it is unknown or smaller."""
        return max(self.budget or 0, self.last_step)

    @cached_property
    def is_beginning(self) -> bool:
        """Return whether the run goes on and has made fewer steps than a trend needs."""
        return self.last_step < min(FEW_STEPS, self.budget or self.last_step)

    @cached_property
    def lr(self) -> float | None:
        """Return the learning rate of the configuration, or else the largest one of the run."""
        lr = self.option("trainer.optimizer.lr")
        if isinstance(lr, int | float) and lr > 0:
            return float(lr)
        series = self.series("lr", count=1)
        return float(series.known.max()) or None if series is not None else None

    def rate(self, factor: float) -> str:
        """Return the learning rate times a factor, to one digit; the factor in words if the rate is unknown.

        The factor lies between .1 and 10: no trend shows what a step of another size would do.
        """
        factor = min(LARGEST_FACTOR, max(1 / LARGEST_FACTOR, factor))
        return f"{self.lr * factor:.0e}" if self.lr else f"{factor:.1g} times the present one"

    @cached_property
    def _covered(self) -> tuple[float, float]:
        """Return the shares of the way from the first rewards to that of the best response that were covered.

        The first is that of the mean reward of training, the second that of the last evaluation. Only the first round
        is sampled before any update; of a fast run, the third is better already. Of a run that begins near the bound,
        the way is that from the worst response.
        """
        mean, highest = self.series("reward/mean"), self.series("reward/max", count=1)
        if mean is None or highest is None:
            return 0.0, 0.0
        first, bound, lowest = min(initial(mean), start(mean)), float(highest.known.max()), self.series("reward/min")
        if lowest is not None and bound - first < (1 - NEARLY_SOLVED_SHARE) * (bound - float(lowest.known.min())):
            first = float(lowest.known.min())
        held_out = self.series("eval/reward/mean", count=2)
        ends = float(mean.late.mean()), float(held_out.known[-1]) if held_out is not None else first
        covered, evaluated = ((end - first) / (bound - first) if bound > first else 0.0 for end in ends)
        return covered, evaluated

    @property
    def is_solved(self) -> bool:
        """Return whether the mean reward has reached that of the best responses of the run."""
        return self._covered[0] >= SOLVED_SHARE

    @property
    def is_solved_in_evaluations(self) -> bool:
        """Return whether the reward of the last evaluation has."""
        return self._covered[1] >= SOLVED_SHARE

    @property
    def is_nearly_solved_in_evaluations(self) -> bool:
        """Return whether most responses of the last evaluation are as good as the best one."""
        return self._covered[1] >= NEARLY_SOLVED_SHARE

    @property
    def is_nearly_solved(self) -> bool:
        """Return whether most responses are as good as the best one."""
        return self._covered[0] >= NEARLY_SOLVED_SHARE

    @cached_property
    def is_supervised(self) -> bool:
        """Return whether the loss itself is to fall: there is a total loss, and no policy gradient."""
        return "loss/total" in self.metrics and "loss/policy" not in self.metrics


TOO_LARGE = "step too large"
TOO_SMALL = "step too small"
ZERO_RATE = "learning rate 0"
OTHER_POLICY = "samples of another policy"
CONSTANT = "reward constant"
INVERTED = "reward inverted"
UNRELATED = "reward does not depend on the text"
DISAGREE = "rewards disagree"
TRUNCATED = "truncation"
EMPTY = "length"
NO_SPREAD = "groups without spread"
COLLAPSED = "entropy"
EXPLODED = "entropy explodes"
LARGE_GRADIENT = "gradient too large"
CRITIC = "value function"
SKIPPED = "updates skipped"
NO_GRADIENT = "no gradient"
WRONG_MASK = "wrong mask"
WRONG_TEACHER = "wrong teacher"
SPIKE = "spike"
OVERFITTED = "overfitting"
NOISY_LABELS = "labels are noise"
INVERTED_LABELS = "labels inverted"
STILL = "data order"

FOLLOWING: Mapping[str, frozenset[str]] = {
    TOO_LARGE: frozenset({
        TOO_LARGE, INVERTED, COLLAPSED, EXPLODED, LARGE_GRADIENT, SPIKE, CRITIC, DISAGREE, SKIPPED, UNRELATED,
        TRUNCATED, EMPTY, NO_SPREAD, OVERFITTED,
    }),
    OTHER_POLICY: frozenset({TOO_LARGE, INVERTED, COLLAPSED, EXPLODED, CRITIC, UNRELATED, TRUNCATED}),
    CONSTANT: frozenset({NO_SPREAD, NO_GRADIENT, CRITIC, UNRELATED, TOO_SMALL, SKIPPED}),
    ZERO_RATE: frozenset({TOO_SMALL, UNRELATED, NO_GRADIENT, NOISY_LABELS}),
    WRONG_MASK: frozenset({OVERFITTED, NO_GRADIENT, TOO_SMALL}),
    LARGE_GRADIENT: frozenset({TOO_LARGE, SKIPPED, SPIKE, INVERTED}),
    NO_GRADIENT: frozenset({TOO_SMALL, NOISY_LABELS, UNRELATED}),
    TOO_SMALL: frozenset({UNRELATED, NOISY_LABELS, CRITIC}),
    NO_SPREAD: frozenset({SKIPPED, UNRELATED, NO_GRADIENT}),
    INVERTED: frozenset({COLLAPSED, CRITIC, NO_SPREAD}),
    EMPTY: frozenset({COLLAPSED, NO_SPREAD, CRITIC}),
    SPIKE: frozenset({OVERFITTED}),
}  # fmt: skip
"""Of each cause, the verdicts that follow from it if they begin no earlier."""
