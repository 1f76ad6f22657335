"""Several runs: which of them differ in nothing but their seeds, and how far two kinds of runs are apart.

Also in this file: the options of runs as rows: their values, their defaults, and where runs differ.
"""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import attrs
import numpy as np

from rlcore.checkpoints.run_folder import RunDir
from rlcore.config.options import Row, describe
from rlcore.errors import RLCoreError
from rlcore.plugins.registry import all_registries
from rlcore.safe_text import visible
from rlcore.settings import TrainConfig
from rlcore_report.metric_groups import last_values
from rlcore_report.run_files import read_rows
from rlcore_report.run_record import RunRecord

UNIMPORTANT = (
    "run.name", "run.root", "run.resume", "run.overwrite", "run.accept_changes", "run.report",
    "run.raise_on_interrupt",
)  # fmt: skip
"""Options that differ between runs and change nothing that a run learns."""
_COMPONENTS = {"trainer": ("trainers", "name"), "model": ("architectures", "architecture")}
_MAX_CHARS = 300


@attrs.frozen
class OptionRow:
    """One option.

    Attributes:
        path: its dotted path.
        values: its value in each run, as JSON; empty where a run does not have it.
        default: its default as JSON; None if that is unknown.
        meaning: what it means.
    """

    path: str
    values: tuple[str, ...]
    default: str | None
    meaning: str

    @property
    def is_changed(self) -> bool:
        """Return whether a run has another value than the default."""
        return self.default is None or any(value and value != self.default for value in self.values)

    @property
    def differs(self) -> bool:
        """Return whether two of the runs have different values of an option that matters.

        One that only some of the runs have, as those of another trainer, counts if a run has changed it.
        """
        is_another_trainers = "" in self.values and not self.is_changed
        return len(set(self.values)) > 1 and self.path not in UNIMPORTANT and not is_another_trainers


def option_rows(runs: Sequence[RunRecord]) -> list[OptionRow]:
    """Return the options of runs, in the order of their files."""
    flat = [flatten(run.config) for run in runs]
    known: dict[str, Row] = {}
    for run in runs:
        known |= _described(run.config)
    paths = dict.fromkeys(path for options in flat for path in options)
    return [
        OptionRow(
            path=visible(path),
            values=tuple(_show(options[path]) if path in options else "" for options in flat),
            default=_show(known[path].default) if path in known else None,
            meaning=known[path].meaning if path in known else "",
        )
        for path in paths
    ]


def flatten(config: Mapping[str, object], prefix: str = "") -> dict[str, Any]:
    """Return the leaves of a configuration by their dotted paths; empty mappings and lists are leaves."""
    leaves: dict[str, object] = {}
    for key, value in config.items():
        path = f"{prefix}{key}"
        leaves |= flatten(value, f"{path}.") if isinstance(value, Mapping) and value else {path: value}
    return leaves


def _described(config: Mapping[str, object]) -> dict[str, Row]:
    """Return what is known of the options: those of the core, of the trainer and of the architecture."""
    rows = {row.path: row for row in _core_rows() if row.path.partition(".")[0] not in _COMPONENTS}
    for section, (kind, key) in _COMPONENTS.items():
        options = config.get(section)
        name = options.get(key) if isinstance(options, Mapping) else None
        if isinstance(name, str):
            rows |= {f"{section}.{row.path}": row for row in _component_rows(kind, name)}
    return rows


@cache
def _core_rows() -> list[Row]:
    return describe(TrainConfig)


def _component_rows(kind: str, name: str) -> list[Row]:
    try:
        options = getattr(all_registries(), kind).get(name).config_class()
    except RLCoreError:  # its plugin may not be installed here
        return []
    return [] if options is None else describe(options)


def _show(value: object) -> str:
    text = visible(json.dumps(value, ensure_ascii=False, default=str))
    return text if len(text) <= _MAX_CHARS else f"{text[:_MAX_CHARS]}…"


SEED, LAST_REWARD = "run.seed", "reward of the last evaluation"
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
    return [*_over_rows(list(zip(firsts, seconds, strict=True))), *found]


def _over_rows(runs: Sequence[tuple[RunRecord, RunRecord]]) -> list[Difference]:
    """Return the difference of the rewards at the last evaluation, paired by row; seeds are averaged.

    Rows are paired by their place if all evaluations have equally many with equal prompts, which may all be one text,
    else by their prompts.
    """
    rewards = [[_last_rewards(run) for run in pair] for pair in runs]
    if len({tuple(key[:2] for key in found) for pair in rewards for found in pair}) > 1:
        rewards = [[_by_prompt(found) for found in pair] for pair in rewards]
    keys = [key for key in rewards[0][0] if all(key in found for pair in rewards for found in pair)] if rewards else []
    if len(keys) < 2:
        return []
    a, b = ([sum(pair[side][key] for pair in rewards) / len(rewards) for key in keys] for side in (0, 1))
    return [paired(LAST_REWARD, "evaluation rows", a, b)]


Rewards = Mapping[tuple[str, str, int], float]
"""By prompt, sampling setting and place."""


def _last_rewards(run: RunRecord) -> Rewards:
    """Return the reward of each row at the last evaluation."""
    last, found = -1, dict[tuple[str, str, int], float]()
    for row in read_rows(RunDir(run.folder).completions):
        if row["step"] != last:
            last, found = row["step"], {}
        if isinstance(row.get("reward"), int | float):
            found[str(row.get("prompt")), str(row.get("sampling", "")), len(found)] = float(row["reward"])
    return found


def _by_prompt(rewards: Rewards) -> Rewards:
    """Return the mean reward of each prompt and sampling setting."""
    found = dict[tuple[str, str, int], list[float]]()
    for (prompt, sampling, _), reward in rewards.items():
        found.setdefault((prompt, sampling, 0), []).append(reward)
    return {key: sum(values) / len(values) for key, values in found.items()}
