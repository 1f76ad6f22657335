"""The groups into which a report sorts its curves, and what good looks like in each.

Also in this file: metrics over steps: read from metrics.jsonl, thinned for a chart, and averaged over seeds.
"""

from __future__ import annotations

import json
import math
import re
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
import numpy as np
import numpy.typing as npt

from rlcore.loggers import place_in
from rlcore_report.run_files import lines_of


@attrs.frozen
class MetricGroup:
    """A heading of the report's curves.

    Attributes:
        title: the heading.
        hint: one sentence on what good looks like.
        pattern: matches the names of its metrics, without the prefix `eval/`.
    """

    title: str
    hint: str
    pattern: str

    def contains(self, name: str) -> bool:
        """Return whether a metric belongs here."""
        return re.match(self.pattern, plain_name(name)) is not None


GROUPS = (
    MetricGroup(
        "Reward",
        "Good: the mean rises and then levels off, evaluation and training agree, and the spread stays above 0.",
        r"rewards?/|reward$|advantage/|group/|accuracy|step/|score",
    ),
    MetricGroup(
        "KL and ratio",
        "Good: the KL to the reference is never far below 0 and grows slowly, the ratio stays near 1, and less than "
        "about a third of the tokens is clipped.",
        r"kl/|policy/(approx_kl|ratio|clip|epochs|skipped)|is/|loss/kl$",
    ),
    MetricGroup(
        "Entropy",
        "Good: the entropy falls slowly; close to 0, all samples of a prompt are alike and nothing more is explored.",
        r"policy/entropy|entropy",
    ),
    MetricGroup(
        "Lengths",
        "Good: lengths change slowly, and few responses are truncated, unless the task is to write long ones.",
        r"response/|length|data/tokens",
    ),
    MetricGroup(
        "Value function",
        "Good: the explained variance rises towards 1; at 0 the value function knows no more than the mean.",
        r"value/",
    ),
    MetricGroup(
        "Losses",
        "Good: a supervised or preference loss and the value loss fall; the policy loss hovers around 0, and its level "
        "means little.",
        r"loss(/|$)",
    ),
    MetricGroup(
        "Learning rate and gradient",
        "Good: the learning rate follows its schedule, and the gradient norm has no growing peaks.",
        r"lr$|lr/|grad/",
    ),
    MetricGroup(
        "Throughput", "Good: tokens per second and the time of a step stay level.", r"time/|perf/tokens|perf/.*per_s"
    ),
    MetricGroup("Memory", "Good: the peak levels off after the first steps.", r"perf/.*(memory|_gb)"),
    MetricGroup(
        "Progress and others", "Other metrics of the trainer and of metric functions.", r"progress/|data/|[^/]+$"
    ),
)
"""The groups, in the order of the page; a metric belongs to the first one that matches, or to one of its own."""


NUM_HEADLINE = 3
USUAL = ("reward/mean", "reward/accuracy", "loss/total", "kl/mean", "policy/entropy", "response/length_mean")
"""The headline of a run whose trainer names none."""


def plain_name(name: str) -> str:
    """Return the name of a metric's chart: without `eval/` and the sampling setting of a sweep.

    The loss of an evaluation is in the chart of the training's.
    """
    plain = name.removeprefix("eval/").partition("@")[0]
    return "loss/total" if name == "eval/loss" else plain


def sorted_into_groups(names: Iterable[str], headline: Sequence[str] = ()) -> list[tuple[MetricGroup, list[str]]]:
    """Return the groups that have metrics, each with the plain names of its metrics.

    Metrics that the trainer names come first, and so do their groups; then means, then the alphabet.

    Args:
        names: the metrics.
        headline: the names that the trainer declares (`rlcore.protocols.Trainer`).
    """
    headline = [plain_name(entry) for entry in headline]
    ordered = sorted(set(map(plain_name, names)), key=lambda name: (not name.endswith("/mean"), name))
    found: dict[MetricGroup, list[str]] = {}
    for name in ordered:
        found.setdefault(_group_of(name), []).append(name)
    places = {name: place_in(headline, name) for name in ordered}
    groups = sorted(found, key=lambda group: GROUPS.index(group) if group in GROUPS else len(GROUPS) - 1.5)
    groups.sort(key=lambda group: min(places[name] for name in found[group]))
    return [(group, sorted(found[group], key=places.__getitem__)) for group in groups]


def headline_charts(names: Iterable[str], headline: Sequence[str]) -> list[str]:
    """Return the plain names of at most three metrics whose charts are large.

    They are those that the trainer names, in its order; of a group that it names, the first. If it names none, the
    rewards, and then the loss, the KL and the length.
    """
    plain = sorted(set(map(plain_name, names)))
    headline = list(dict.fromkeys(map(plain_name, headline)))
    wanted = [*headline, *USUAL] if not any(place_in(headline, name) < len(headline) for name in plain) else headline
    found: list[str] = []
    for entry in wanted:
        having = [name for name in plain if place_in([entry], name) == 0 and name not in found]
        found += having[:1]
    return found[:NUM_HEADLINE]


def _group_of(name: str) -> MetricGroup:
    """Return the first group that contains a metric; one that no pattern knows has a group by the name of its own."""
    known = next((group for group in GROUPS if group.contains(name)), None)
    prefix = name.partition("/")[0]
    return known or MetricGroup(
        prefix, f"Metrics under {prefix}/, of the trainer or of a metric function.", f"{prefix}/"
    )


Floats = npt.NDArray[np.float64]
MAX_POINTS = 2000
"""Points of one curve on a page: a screen has no more columns."""
LARGEST = 1e300
"""Numbers beyond this are left out."""


@attrs.frozen(eq=False)
class Series:
    """The values of one metric.

    Attributes:
        steps: int64[N], rising.
        values: float64[N]; nan where the file has null.
    """

    steps: npt.NDArray[np.int64]
    values: Floats

    @property
    def known(self) -> Floats:
        """Return the finite values, in the order of their steps."""
        return self.values[np.isfinite(self.values)]

    @property
    def early(self) -> Floats:
        """Return the first fifth of the finite values, at least one."""
        return self.known[: max(1, len(self.known) // 5)]

    @property
    def late(self) -> Floats:
        """Return the last fifth of the finite values, at least one."""
        return self.known[-max(1, len(self.known) // 5) :]


def read_series(file: Path) -> dict[str, Series]:
    """Return every metric of a metrics.jsonl that may still grow; incomplete and damaged lines are skipped.

    Rows that have the same keys, as the steps of a run mostly do, form one table of numbers.
    """
    tables: dict[tuple[str, ...], array[float]] = {}
    for row in _rows(file):
        if type(row.get("step")) is int:
            try:
                numbers = array("d", row.values())
            except (TypeError, OverflowError):  # null, text or an integer that is no float
                numbers = array("d", map(_number, row.values()))
            tables.setdefault(tuple(row), array("d")).extend(numbers)
    parts: dict[str, list[Floats]] = {}
    for names, flat in tables.items():
        table = np.array(flat).reshape(-1, len(names))
        steps = table[:, names.index("step")]
        for column, name in enumerate(names):
            parts.setdefault(name, []).append(np.stack([steps, table[:, column]]))
    parts.pop("step", None)
    return {name: _joined(found) for name, found in parts.items()}


def _number(value: object) -> float:
    return float(value) if isinstance(value, int | float) and abs(value) < LARGEST else math.nan


def _joined(parts: Sequence[Floats]) -> Series:
    steps, values = np.concatenate(parts, axis=1)
    order = np.argsort(steps, kind="stable")
    return Series(steps[order].astype(np.int64), values[order])


def _rows(file: Path) -> Iterator[dict[str, Any]]:
    for line in lines_of(file):
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            continue
        if isinstance(row, dict):
            yield row


def thinned(series: Series, num_points: int = MAX_POINTS) -> Series:
    """Return at most `num_points` of the points: of each stretch the lowest and the highest, so that peaks stay."""
    count = len(series.steps)
    if count <= num_points:
        return series
    size = -(-count // (num_points // 2 - 1))
    padding = -count % size
    table = np.pad(series.values, (0, padding), constant_values=np.nan).reshape(-1, size)
    starts = np.arange(len(table)) * size
    low = starts + np.where(np.isnan(table), np.inf, table).argmin(1)
    high = starts + np.where(np.isnan(table), -np.inf, table).argmax(1)
    kept = np.unique(np.concatenate([[0], low, high, [count - 1]]))
    return Series(series.steps[kept], series.values[kept])


@attrs.frozen(eq=False)
class Band:
    """The mean of one metric over several runs, and its lowest and highest value, at the steps that all runs have."""

    mean: Series
    low: Series
    high: Series


def band(runs: Sequence[Series]) -> Band:
    """Return the mean and the range of a metric over runs; long runs are averaged over stretches of steps."""
    steps = runs[0].steps
    for each in runs[1:]:
        steps = np.intersect1d(steps, each.steps)
    rows = [_last_at(each, steps) for each in runs]
    stack = np.stack(rows)
    size = max(1, -(-len(steps) // (MAX_POINTS // 2)))
    starts = np.arange(0, len(steps), size)
    if not len(steps):
        starts = starts[:0]
    counts = np.diff(np.append(starts, len(steps)))

    def reduced(ufunc: np.ufunc, values: Floats) -> Floats:
        return values if size == 1 else np.asarray(ufunc.reduceat(values, starts))

    at = steps if size == 1 else steps[starts]
    mean = reduced(np.add, stack.mean(0)) / (counts if size > 1 else 1)
    low, high = reduced(np.minimum, stack.min(0)), reduced(np.maximum, stack.max(0))
    return Band(Series(at, mean), Series(at, low), Series(at, high))


def _last_at(series: Series, steps: npt.NDArray[np.int64]) -> Floats:
    """Return the value at each step; of two values at one step, the last."""
    places = np.searchsorted(series.steps, steps, side="right") - 1
    return series.values[places]


def last_values(metrics: Mapping[str, Series]) -> dict[str, float]:
    """Return the mean of the last fifth of every metric."""
    return {name: float(series.late.mean()) for name, series in metrics.items() if len(series.known)}
