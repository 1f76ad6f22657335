"""The metrics that matter most in a run, and the formatting of numbers."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from html import escape
from numbers import Real
from typing import Any

from rlcore.loggers import place_in
from rlcore.safe_text import visible

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
EPISODE = "episode/"
"""Beginning of the metrics of episodes, which are shown beside those that a trainer names."""
EPISODE_COLUMNS = (EPISODE, "environment/", "curriculum/")
"""Beginnings of columns about the episodes of an environment."""


def scores_first(names: Iterable[str]) -> list[str]:
    """Return the columns of completions, with those about episodes after all others, so that scores have room."""
    return sorted(names, key=lambda name: name.startswith(EPISODE_COLUMNS))


def headline_metrics(names: Iterable[str], headline: Sequence[str]) -> list[str]:
    """Choose the metrics of a step's line: those that the trainer names, then usual ones as long as there is room.

    Without names from the trainer, the first metric of each group that rlcore does not know follows the reward, the KL
    and the losses of the policy, so that new metrics are seen without an option.

    Args:
        names: the metrics of the step.
        headline: the names that the trainer declares (`rlcore.protocols.Trainer`).
    """
    main = [name for name in names if not name.endswith(SIDE_STATISTICS) and not name.startswith(EPISODE)]
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


NUMBER_WIDTH = 9


def short_name(key: str) -> str:
    """Shorten a key if it stays unambiguous: `reward/mean` to `reward`, `response/length_mean` to `length`."""
    name, at, sampling = key.partition("@")
    short = name.removesuffix("/mean").removesuffix("/total").removeprefix("response/").removesuffix("_mean")
    return short + at + sampling


def show_number(value: float) -> str:
    """Format a metric with fixed width and its significant digits."""
    value = float(value)
    size = abs(value)
    if not math.isfinite(value) or value == 0:
        text = f"{value:g}"
    elif 10 <= size < 1e6 and value.is_integer():
        text = f"{value:.0f}"
    elif size < 1e-3 or size >= 1e5:
        text = f"{value:.2e}"
    else:
        text = f"{value:.4f}" if size < 10 else f"{value:.2f}"
    return f"{text:>{NUMBER_WIDTH}}"


def show_cell(value: Any) -> str:
    """Format a number for a table: an integer unchanged, a float like a metric; "" for any other value."""
    if not _is_number(value):
        return ""
    return str(value) if isinstance(value, int) else show_number(value).strip()


def _is_number(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def html_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table for notebooks; texts are escaped."""
    lines = [("th", head), *(("td", row) for row in rows)]
    body = ("".join(f"<{tag}>{escape(visible(cell))}</{tag}>" for cell in row) for tag, row in lines)
    return "<table>" + "".join(f"<tr>{cells}</tr>" for cells in body) + "</table>"
