"""How far people agree in their judgements."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import attrs

from rlcore_human.judgement import RANK, SCORE, Judgement

LEVELS: dict[str, Literal["interval", "ordinal"]] = {SCORE: "interval", RANK: "ordinal"}
"""The level of measurement: distances of scores count, of ranks only their order."""


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
