"""How far people agree in their judgements."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import attrs

from rlcore_rewards.human.judgement import RANK, SCORE, Judgement, read_judgements

LEVELS: dict[str, Literal["interval", "ordinal"]] = {SCORE: "interval", RANK: "ordinal"}
"""The level of measurement: distances of scores count, of ranks only their order."""
REPORTED = "report/judgements.txt"
"""File in a run's folder that `rlcore-report` shows."""


@attrs.frozen
class Agreement:
    """How far people agree.

    Attributes:
        mode: `score` or `rank`.
        alpha: Krippendorff's alpha: 1 if all agree, 0 if they agree as by chance, below 0 if they disagree
            systematically; nan if all judgements are the same, which leaves nothing to compare.
        completions: number of completions that two people or more judged.
        people: number of people who judged them.
    """

    mode: str
    alpha: float
    completions: int
    people: int


def measure_agreement(judgements: Sequence[Judgement]) -> list[Agreement]:
    """Return the agreement of all scores and of all rankings, each if two people have judged the same completion.

    Krippendorff's alpha (Hayes & Krippendorff 2007, doi:10.1080/19312450709336664), by the library `krippendorff`:
    scores at the interval level, each divided by its scale; ranks within their question at the ordinal level.
    """
    found = []
    for mode, level in LEVELS.items():
        by_completion: dict[tuple[str, int], dict[str, float]] = {}
        for each in judgements:
            if each.item.mode == mode:
                for i, score in enumerate(each.scores):
                    if score is not None:
                        by_completion.setdefault((each.item.key, i), {})[each.who] = _on_one_scale(each, score)
        shared = [scores for scores in by_completion.values() if len(scores) > 1]
        if shared:
            people = sorted(set().union(*shared))
            rows = [[scores.get(who, math.nan) for scores in shared] for who in people]
            found.append(Agreement(mode, _alpha(rows, level), len(shared), len(people)))
    return found


def in_words(judgements: Sequence[Judgement]) -> list[str]:
    """Return how many judgements people made, and sentences on how far they agree."""
    people = Counter(judgement.who for judgement in judgements)
    items = len({judgement.item.key for judgement in judgements})
    by = ", ".join(f"{who} {count}" for who, count in people.most_common())
    lines = [f"{len(judgements)} judgements of {items} questions" + (f": {by}" if by else "")]
    for each in measure_agreement(judgements):
        alpha = "undefined, as all judgements are the same" if math.isnan(each.alpha) else f"{each.alpha:.2f}"
        lines.append(
            f"{each.people} people judged {each.completions} completions more than once ({each.mode}); Krippendorff's "
            f"alpha, 1 if they agree and 0 as by chance: {alpha}"
        )
    return lines


def write_agreement(folder: Path) -> None:
    """Write `in_words` for the report of a run in which people have judged something.

    Raises:
        OSError: there is no room for it.
        DataError: the judgements are damaged.
    """
    if judgements := read_judgements(folder):
        file = folder / REPORTED
        file.parent.mkdir(exist_ok=True)
        file.write_text("".join(f"{line}\n" for line in in_words(judgements)), encoding="utf-8")


def _on_one_scale(judgement: Judgement, score: float) -> float:
    """Return a score in [0, 1], so that questions with other scales can be compared."""
    if judgement.item.mode == RANK:
        return score
    low, high, _ = judgement.item.scale
    return (score - low) / (high - low)


def _alpha(rows: list[list[float]], level: Literal["interval", "ordinal"]) -> float:
    import krippendorff  # imports numpy
    import numpy as np

    values = np.array(rows)
    if np.unique(values[~np.isnan(values)]).size < 2:
        return math.nan
    return float(krippendorff.alpha(reliability_data=values, level_of_measurement=level))
