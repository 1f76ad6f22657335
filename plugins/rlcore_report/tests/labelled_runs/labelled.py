"""The files of labelled runs: only what the verdicts read, at two or four significant digits, one metric a line."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import attrs
import numpy as np

from rlcore_report.metric_groups import Series

RUNS = Path(__file__).parent / "runs"
DIGITS, FEW_DIGITS = 4, 2
COARSE = re.compile(
    r"grad/norm|loss/policy|is/logprob_gap|policy/(approx_kl|clip).*|value/explained_variance|reward/std"
)
"""The metrics of which two digits are enough, since verdicts compare them with limits that are far apart."""
READ = re.compile(
    r"lr|loss/(total|policy)|eval/loss(/total|/awac)?|kl/mean|grad/.*|progress/epoch|logps/chosen|is/logprob_gap|rft/kept|"
    r"policy/(?!epochs|entropy_trained).*|response/.*|group/zero_spread_fraction|(eval/)?(rewards?|step)/accurac(y|ies)|"
    r"reward/(mean|std|min|max)|rewards/mean|distill/agreement|value/explained_variance|reward/(early|late)_letters|reward/vowels|eval/reward/mean"
)
"""The names of the metrics that verdicts read."""
OPTIONS = {
    "trainer": ("name", "optimizer.lr", "kl_coef", "value_coef", "entropy_coef", "beta", "num_generations", "clip"),
    "gen": ("max_new_tokens", "temperature"),
    "run": ("steps",),
}
"""The options that verdicts name with another value."""


@attrs.frozen(eq=False)
class LabelledRun:
    """A run of which it is known what is wrong with it.

    Attributes:
        name: the file's name.
        scenario: what it is a run of.
        seed: 9 and more for the runs that were judged when the rules were fixed.
        cause: what is wrong; empty for a good run.
        made: `trained` or `synthetic`.
        config: the options that verdicts read.
        metrics: the metrics.
    """

    name: str
    scenario: str
    seed: int
    cause: str
    made: str
    config: Mapping[str, Any]
    metrics: Mapping[str, Series]


def write_run(
    file: Path, about: Mapping[str, Any], rows: Sequence[Mapping[str, Any]], config: Mapping[str, Any]
) -> None:
    """Write a file: a line on the run, then a line for each metric, with its steps if they are not 1, 2, 3 ...

    A metric with one value is written once, with its count, and one that rises evenly with its first value and rise.
    """
    found: dict[str, list[tuple[int, float | None]]] = {}
    for row in rows:
        for name, value in row.items():
            if READ.fullmatch(name):
                digits = FEW_DIGITS if COARSE.fullmatch(name) else DIGITS
                found.setdefault(name, []).append((row["step"], rounded(value, digits)))
    lines: list[Mapping[str, Any]] = [{**about, "config": options(config)}]
    for name, points in found.items():
        steps = [step for step, _ in points]
        line: dict[str, Any] = {"metric": name}
        if steps != list(range(1, len(steps) + 1)):
            line["steps"] = steps
        lines.append(line | _shortened([value for _, value in points]))
    file.parent.mkdir(exist_ok=True)
    file.write_text("".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines))


def _shortened(values: Sequence[float | None]) -> dict[str, Any]:
    known = [value for value in values if value is not None]
    if len(set(values)) == 1:
        return {"all": values[0], "count": len(values)}
    if len(known) == len(values) > 2:
        rise = (known[-1] - known[0]) / (len(known) - 1)
        if np.allclose(known, known[0] + rise * np.arange(len(known)), rtol=2e-3, atol=0):
            return {"first": known[0], "rise": rounded(rise), "count": len(known)}
    return {"values": values}


def rounded(value: float | None, digits: int = DIGITS) -> float | None:
    """Return a number with a few significant digits; None if it is not finite."""
    if value is None or not math.isfinite(value):
        return None
    short = float(f"{value:.{digits}g}")
    return int(short) if short.is_integer() and abs(short) < 1e9 else short


def options(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that verdicts read."""
    kept: dict[str, Any] = {}
    for section, names in OPTIONS.items():
        for path in names:
            inner, target = config.get(section), kept.setdefault(section, {})
            *parts, last = path.split(".")
            for part in parts:
                inner = inner.get(part) if isinstance(inner, Mapping) else None
                target = target.setdefault(part, {})
            if isinstance(inner, Mapping) and last in inner:
                target[last] = inner[last]
    return kept


def read_run(file: Path) -> LabelledRun:
    """Read a file that `write_run` wrote."""
    about, *lines = map(json.loads, file.read_text().splitlines())
    metrics = {}
    for line in lines:
        values = _written(line)
        steps = line.get("steps") or range(1, len(values) + 1)
        metrics[line["metric"]] = Series(np.array(steps, dtype=np.int64), values)
    return LabelledRun(name=file.stem, metrics=metrics, **about)


def _written(line: Mapping[str, Any]) -> np.ndarray:
    if "rise" in line:
        return np.array(line["first"] + line["rise"] * np.arange(line["count"]))
    given = line.get("values") or [line["all"]] * line["count"]
    return np.array([math.nan if value is None else value for value in given], dtype=float)


def all_runs() -> list[LabelledRun]:
    """Return every labelled run, in the order of their names."""
    return [read_run(file) for file in sorted(RUNS.glob("*.jsonl"))]


def good(runs: Iterable[LabelledRun]) -> list[LabelledRun]:
    """Return those with which nothing is wrong."""
    return [run for run in runs if not run.cause]
