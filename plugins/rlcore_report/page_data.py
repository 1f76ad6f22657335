"""The data of a report's page: everything that its script shows, as one JSON document."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Any

import attrs
import numpy as np

from rlcore._version import __version__
from rlcore.checkpoints.run_folder import RunDir
from rlcore.safe_text import visible
from rlcore_report.answer import best_checkpoint, change_in, change_of, in_one_sentence, spent
from rlcore_report.metric_groups import (
    MAX_POINTS,
    Series,
    band,
    headline_charts,
    last_values,
    plain_name,
    sorted_into_groups,
    thinned,
)
from rlcore_report.run_record import RunRecord, device_of
from rlcore_report.samples_on_page import ShownRows, prompts_by_step, read_images, read_samples, read_texts
from rlcore_report.variants import (
    Difference,
    OptionRow,
    Variant,
    compare_variants,
    distinct_names,
    option_rows,
    variants,
)
from rlcore_report.verdicts import Verdict, verdicts

DIGITS = 5
"""Significant digits of a number on the page."""
MAX_POINTS_IN_ALL = 400_000
"""Points of all curves of a page; with more curves, each has fewer."""
AXIS_POINTS = 500
"""Steps whose seconds and tokens are on a page; between them they are interpolated."""


def page_data(runs: Sequence[RunRecord], *, stamp: str = "", keys: Sequence[str] = ()) -> dict[str, object]:
    """Return what the page of one run or several shows.

    Args:
        runs: the runs.
        stamp: tells a page that asks again whether anything has changed.
        keys: the keys of the runs in the list of a dashboard.
    """
    kinds, samples = variants(runs), [_read_samples(run) for run in runs]
    found = [
        verdicts(run.metrics, prompts_by_step(each["rollouts"].rows), run.config)
        for run, each in zip(runs, samples, strict=True)
    ]
    names, shown = [name for run in runs for name in run.metrics], distinct_names([run.folder for run in runs])
    options = option_rows(runs)
    return {
        "version": __version__,
        "stamp": stamp,
        "written": datetime.now().astimezone().isoformat(sep=" ", timespec="minutes"),
        "runs": [
            _run(run, shown[run.folder], _place(run, kinds)) | {"answer": _answer(run, judged)}
            for run, judged in zip(runs, found, strict=True)
        ],
        "keys": list(keys),
        "variants": [{"label": visible(kind.label), "runs": len(kind.runs), "axes": _axes(kind)} for kind in kinds],
        "main": next((visible(change.metric) for run in runs if (change := change_in(run.metrics, run.headline))), ""),
        "headline": [visible(name) for name in headline_charts(names, _headline(kinds))],
        "groups": curve_groups(kinds),
        "verdicts": [[attrs.asdict(each) for each in judged] for judged in found],
        "samples": [_samples(found) for found in samples],
        "options": [_option(row) for row in options],
        "ends": _ends(runs) if len(runs) > 1 else [],
        "differences": _differences(kinds),
    }


def _place(run: RunRecord, kinds: Sequence[Variant]) -> int:
    return next(i for i, kind in enumerate(kinds) if run in kind.runs)


def _run(run: RunRecord, name: str, variant: int) -> dict[str, Any]:
    return {
        "name": visible(name),
        "folder": visible(run.folder),
        "variant": variant,
        "step": run.last_step,
        "total": run.total_steps,
        "end": {name: visible(text) for name, text in attrs.asdict(run.end).items()} | {"level": run.end.level},
        "trainer": visible(run.option("trainer", "name") or "unknown"),
        "model": visible(run.option("model", "path") or "unknown"),
        "seed": seed if type(seed := run.option("run", "seed")) is int else None,
        "plugins": ", ".join(f"{visible(name)} {visible(version)}" for name, version in run.plugins.items()),
        "notes": [visible(note) for note in run.notes],
        "texts": [{"name": visible(name), "text": visible(text)} for name, text in read_texts(run.folder / "report")],
        "images": [{"name": visible(name), "url": url} for name, url in read_images(run.folder / "images")],
        "thumbnails": dict(read_images(run.folder / "thumbnails")),  # by the names that prompts have for images
    }


def _answer(run: RunRecord, judged: Sequence[Verdict]) -> dict[str, Any]:
    """Return what the card of a run has: the change of its main metric, its cost, its best checkpoint, one verdict."""
    change, best = change_of(run), best_checkpoint(run)
    seconds, tokens = (None if series is None else rounded(float(series.values[-1])) for series in spent(run))
    return {
        "change": None if change is None else {
            "metric": visible(change.metric), "before": rounded(change.before), "after": rounded(change.after),
            "spans": change.spans, "half": rounded(change.half_width), "basis": change.basis,
        },
        "seconds": seconds,
        "tokens": tokens,
        "device": device_of(run.folder),
        "best": None if best is None else {
            "step": best["step"], "score": rounded(best["score"]), "metric": visible(best["metric"]),
            "line": visible(best["line"]), "isBest": best["is_best"], "note": visible(best["note"]),
        },
        "verdict": {name: visible(text) for name, text in in_one_sentence(run, judged, change).items()},
    }  # fmt: skip


def _headline(kinds: Sequence[Variant]) -> list[str]:
    """Return what the trainers name, by turns, so that each has its first metrics in front."""
    turns = itertools.zip_longest(*(run.headline for kind in kinds for run in kind.runs))
    return list(dict.fromkeys(name for turn in turns for name in turn if name is not None))


def _axes(kind: Variant) -> dict[str, object]:
    """Return the seconds and the tokens up to some steps of a variant's first run, for the axis of its charts."""
    named = zip(("time", "tokens"), spent(kind.runs[0]), strict=True)
    return {name: _points(_every(series)) for name, series in named if series is not None}


def _every(series: Series) -> Series:
    kept = np.unique(np.linspace(0, len(series.steps) - 1, min(len(series.steps), AXIS_POINTS)).astype(int))
    return Series(series.steps[kept], series.values[kept])


def curve_groups(kinds: Sequence[Variant]) -> list[dict[str, Any]]:
    """Return the charts of every group of metrics, with the curves of each variant; seeds are one band."""
    names = {name for kind in kinds for run in kind.runs for name in run.metrics}
    num_points = max(100, min(MAX_POINTS, MAX_POINTS_IN_ALL // max(1, len(names) * len(kinds))))
    groups = []
    for group, plain in sorted_into_groups(names, _headline(kinds)):
        charts = [{"name": visible(name), "curves": _curves(name, names, kinds, num_points)} for name in plain]
        groups.append({"title": visible(group.title), "hint": visible(group.hint), "charts": charts})
    return groups


def _curves(plain: str, names: Iterable[str], kinds: Sequence[Variant], num_points: int) -> list[dict[str, object]]:
    """Return the curves of a chart: of each variant the training's, the evaluation's, and those of a sweep."""
    curves = []
    for name in sorted(each for each in names if plain_name(each) == plain):
        suffix = name.partition("@")[2]
        label = " ".join(filter(None, ["evaluation" if name.startswith("eval/") else "training", suffix]))
        for number, kind in enumerate(kinds):
            having = [run.metrics[name] for run in kind.runs if name in run.metrics]
            curve = {"label": visible(label), "variant": number, "evaluation": name.startswith("eval/")}
            if len(having) == 1:
                curves.append(curve | _points(thinned(having[0], num_points)))
            elif having:
                found = band(having)
                low, high = _numbers(found.low.values), _numbers(found.high.values)
                curves.append(curve | _points(found.mean) | {"low": low, "high": high, "seeds": len(having)})
    return curves


def _points(series: Series) -> dict[str, object]:
    return {"steps": series.steps.tolist(), "values": _numbers(series.values)}


def _numbers(values: np.ndarray) -> list[float | None]:
    return [rounded(value) for value in values.tolist()]


def rounded(value: float) -> float | None:
    """Return a number as the page shows it; None for one that JSON cannot represent."""
    return float(f"{value:.{DIGITS}g}") if math.isfinite(value) else None


def _read_samples(run: RunRecord) -> dict[str, ShownRows]:
    folder = RunDir(run.folder)
    return {"completions": read_samples(folder.completions), "rollouts": read_samples(folder.rollouts)}


def _samples(found: Mapping[str, ShownRows]) -> dict[str, Any]:
    return {
        name: {
            "rows": [attrs.asdict(row) | {"numbers": _finite(row.numbers)} for row in samples.rows],
            "num_steps": samples.num_steps,
            "num_rows": samples.num_rows,
        }
        for name, samples in found.items()
    }


def _finite(numbers: dict[str, float]) -> dict[str, float | None]:
    return {name: rounded(float(value)) if abs(value) < 1e300 else None for name, value in numbers.items()}


def _option(row: OptionRow) -> dict[str, object]:
    return attrs.asdict(row) | {"changed": row.is_changed, "differs": row.differs}


def _ends(runs: Sequence[RunRecord]) -> list[dict[str, object]]:
    """Return of every metric the mean of the last fifth of its values in each run."""
    ends = [last_values(run.metrics) for run in runs]
    names = dict.fromkeys(name for values in ends for name in values)
    return [
        {"name": visible(name), "values": [rounded(values[name]) if name in values else None for values in ends]}
        for name in names
    ]


def _differences(kinds: Sequence[Variant]) -> list[dict[str, Any]]:
    """Return the paired differences of every other variant from the first."""
    return [
        {"variant": number, **_difference(each)}
        for number, kind in enumerate(kinds[1:], 1)
        for each in compare_variants(kinds[0], kind)
    ]


def _difference(each: Difference) -> dict[str, object]:
    numbers = {name: rounded(getattr(each, name)) for name in ("a", "b", "mean", "half_width")}
    return {**attrs.asdict(each), **numbers, "name": visible(each.name), "verdict": each.verdict}
