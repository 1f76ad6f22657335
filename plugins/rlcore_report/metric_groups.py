"""The groups into which a report sorts its curves, and what good looks like in each."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

import attrs

from rlcore.loggers import place_in


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
    """Return a metric's name without `eval/` and without the sampling setting of a sweep."""
    return name.removeprefix("eval/").partition("@")[0]


def sorted_into_groups(names: Iterable[str], headline: Sequence[str] = ()) -> list[tuple[MetricGroup, list[str]]]:
    """Return the groups that have metrics, each with the plain names of its metrics.

    Metrics that the trainer names come first, and so do their groups; then means, then the alphabet.

    Args:
        names: the metrics.
        headline: the names that the trainer declares (`rlcore.protocols.Trainer`).
    """
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
