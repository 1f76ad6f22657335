"""Several runs: which of them differ in nothing but their seeds, and how far two kinds of runs are apart."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
import numpy as np

from rlcore.checkpoints.run_folder import RunDir
from rlcore_report.option_table import UNIMPORTANT, flatten
from rlcore_report.run_files import read_rows
from rlcore_report.run_record import RunRecord
from rlcore_report.series import last_values

SEED = "run.seed"
T_975 = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131, 2.120,
    2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip
"""The 0.975 quantile of Student's t distribution with 1 to 30 degrees of freedom."""


@attrs.frozen(eq=False)
class Variant:
    """Runs that have the same options but for the seed.

    Attributes:
        label: the name of the only run (see `distinct_names`), or the beginning that the names share, and the number
            of seeds, or of runs if some have the same seed.
        runs: at least one.
    """

    label: str
    runs: tuple[RunRecord, ...]


def variants(runs: Sequence[RunRecord]) -> list[Variant]:
    """Sort runs into variants, in the order in which they were named."""
    groups: dict[Any, list[RunRecord]] = {}
    for number, run in enumerate(runs):
        options = {path: str(value) for path, value in flatten(run.config).items() if path not in (SEED, *UNIMPORTANT)}
        key = tuple(sorted(options.items())) if options else number
        groups.setdefault(key, []).append(run)
    names = distinct_names([run.folder for run in runs])
    labels = [_label(group, names) for group in groups.values()]
    named = zip(labels, groups.values(), strict=True)
    return [
        Variant(label if labels.count(label) == 1 else str(group[0].folder), tuple(group)) for label, group in named
    ]


def distinct_names(folders: Sequence[Path]) -> dict[Path, str]:
    """Return the name of each run's folder, with as many folders above it as runs of one name need to differ."""
    parts = {folder: folder.resolve().parts for folder in folders}
    names = dict.fromkeys(parts, "")
    for folder, whole in parts.items():
        others = [each for each in parts.values() if each != whole]
        count = next(n for n in range(1, len(whole) + 1) if all(each[-n:] != whole[-n:] for each in others))
        names[folder] = "/".join(whole[-count:])
    return names


def _label(runs: Sequence[RunRecord], names: Mapping[Path, str]) -> str:
    if len(runs) == 1:
        return names[runs[0].folder]
    alike = itertools.takewhile(lambda letters: len(set(letters)) == 1, zip(*(run.name for run in runs), strict=False))
    shared = "".join(letters[0] for letters in alike).rstrip("-_. ") or runs[0].name
    seeds = {str(run.option("run", "seed")) for run in runs}
    return f"{shared} ({len(runs)} {'seeds' if len(seeds) == len(runs) else 'runs'})"


@attrs.frozen
class Difference:
    """How far B is above A, from pairs of numbers.

    Attributes:
        name: the metric.
        pairs: what a pair is, such as `seeds` or `evaluation prompts`.
        count: the number of pairs.
        a, b: the means.
        mean: the mean of B - A.
        half_width: half the width of its 95 % confidence interval by Student's t; nan for a single pair.
    """

    name: str
    pairs: str
    count: int
    a: float
    b: float
    mean: float
    half_width: float

    @property
    def verdict(self) -> str:
        """Return whether B is higher, lower, or not told apart."""
        if math.isnan(self.half_width):
            return "one pair: no interval"
        if abs(self.mean) <= self.half_width:
            return "not told apart"
        return "higher" if self.mean > 0 else "lower"


def paired(name: str, pairs: str, a: Sequence[float], b: Sequence[float]) -> Difference:
    """Compare pairs of numbers, of which there is at least one."""
    first, second = np.asarray(a, float), np.asarray(b, float)
    differences = second - first
    count = len(differences)
    pairs = pairs.removesuffix("s") if count == 1 else pairs
    half = math.nan
    if count > 1:
        quantile = T_975[count - 2] if count - 2 < len(T_975) else 1.96
        half = quantile * float(differences.std(ddof=1)) / math.sqrt(count)
    return Difference(name, pairs, count, float(first.mean()), float(second.mean()), float(differences.mean()), half)


def compare_variants(a: Variant, b: Variant) -> list[Difference]:
    """Return the paired differences of two variants: over the seeds that both have, and over evaluation prompts.

    A metric's number of a run is the mean of the last fifth of its values.
    """
    by_seed = [{str(run.option("run", "seed")): run for run in reversed(each.runs)} for each in (a, b)]
    shared = [seed for seed in by_seed[0] if seed in by_seed[1]]
    firsts, seconds = ([by_seed[i][seed] for seed in shared] for i in (0, 1))
    what = "seeds"
    if not shared and len(a.runs) == len(b.runs) == 1:
        firsts, seconds, what = list(a.runs), list(b.runs), "runs"
    found = list[Difference]()
    ends = [[last_values(run.metrics) for run in runs] for runs in (firsts, seconds)]
    if ends[0]:
        found = [
            paired(name, what, *([values[name] for values in side] for side in ends))
            for name in ends[0][0]
            if all(name in values for side in ends for values in side)
        ]
    return [*_over_prompts(list(zip(firsts, seconds, strict=True))), *found]


def _over_prompts(runs: Sequence[tuple[RunRecord, RunRecord]]) -> list[Difference]:
    """Return the difference of the rewards at the last evaluation, paired by prompt; seeds are averaged."""
    rewards = [[_last_rewards(run) for run in pair] for pair in runs]
    keys = [key for key in rewards[0][0] if all(key in found for pair in rewards for found in pair)] if rewards else []
    if len(keys) < 2:
        return []
    a, b = ([sum(pair[side][key] for pair in rewards) / len(rewards) for key in keys] for side in (0, 1))
    return [paired("reward of the last evaluation", "evaluation prompts", a, b)]


def _last_rewards(run: RunRecord) -> Mapping[tuple[str, str], float]:
    """Return the mean reward of each prompt, and sampling setting, at the last evaluation."""
    last, found = -1, dict[tuple[str, str], list[float]]()
    for row in read_rows(RunDir(run.folder).completions):
        if row["step"] != last:
            last, found = row["step"], {}
        if isinstance(row.get("reward"), int | float):
            key = (str(row.get("prompt")), str(row.get("sampling", "")))
            found.setdefault(key, []).append(float(row["reward"]))
    return {key: sum(values) / len(values) for key, values in found.items()}
