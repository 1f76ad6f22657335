"""The metrics that matter most in a run: those that its trainer names, and the usual ones beside them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

USUAL = (
    "reward/mean",
    "kl/mean",
    "loss/policy",
    "loss/value",
    "response/length_mean",
    "loss/total",
    "loss",
    "grad/norm",
    "lr",
)
"""Metrics that most trainers have, in the order in which they are shown."""
KNOWN_GROUPS = (
    "advantage", "data", "grad", "kl", "loss", "lr", "perf", "policy", "progress", "response", "reward", "time",
    "value",
)  # fmt: skip
"""Groups that are shown only by the names in `USUAL`, unless a trainer names more of them."""
SIDE_STATISTICS = ("/std", "/min", "/max", "/median", "_s")
MAX_CELLS = 5
"""Metrics in a step's line or a sample's row; all that a trainer names are shown, however many they are."""


def place_in(headline: Sequence[str], name: str) -> int:
    """Return the index of the first entry that is a metric's name or its group, such as `toxicity/`, or the length.

    Args:
        headline: names of metrics, and of groups with a slash at the end.
        name: the metric.
    """
    places = (i for i, entry in enumerate(headline) if name == entry or (entry[-1:] == "/" and name.startswith(entry)))
    return next(places, len(headline))


def headline_metrics(names: Iterable[str], headline: Sequence[str]) -> list[str]:
    """Choose the metrics of a step's line: those that the trainer names, then usual ones as long as there is room.

    Without names from the trainer, the first metric of each group that rlcore does not know follows the reward, the KL
    and the losses of the policy, so that new metrics are seen without an option.

    Args:
        names: the metrics of the step.
        headline: the names that the trainer declares (`rlcore.protocols.Trainer`).
    """
    main = [name for name in names if not name.endswith(SIDE_STATISTICS)]
    named = [name for name in main if place_in(headline, name) < len(headline)]
    named = sorted(named, key=lambda name: place_in(headline, name))
    usual = [name for name in USUAL if name in main and name not in named]
    if named:
        return [*named, *usual[: max(MAX_CELLS - len(named), 0)]]
    if not usual:
        return main[:MAX_CELLS]
    firsts: dict[str, str] = {}
    for name in main:
        firsts.setdefault(name.partition("/")[0], name)
    new = [name for group, name in firsts.items() if group not in KNOWN_GROUPS][: MAX_CELLS - 2]
    return [*usual[: MAX_CELLS - len(new)], *new]
