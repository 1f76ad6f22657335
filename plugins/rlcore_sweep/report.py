"""The report of a sweep: one HTML file without scripts, which fetches nothing."""

from __future__ import annotations

import os
from collections.abc import Sequence
from datetime import datetime
from importlib.resources import files
from pathlib import Path

from rlcore._version import __version__
from rlcore_sweep.charts import (
    colours_by_rank,
    history,
    importance_bars,
    learning_curves,
    parallel_coordinates,
    tag,
    text_of,
)
from rlcore_sweep.screen import summary
from rlcore_sweep.space import show_value
from rlcore_sweep.study import Study, TrialRecord
from rlcore_sweep.sweep_folder import SweepFolder, name_of
from rlcore_sweep.sweep_options import Sweep

FEWEST = 4
"""Trials from which the importance of options is estimated."""
_POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
_IMPORTANCE = (
    "How much each option separates the best quarter of the trials from the others, by PED-ANOVA (arXiv:2304.10255); "
    "the shares add up to 100 %. Pruned trials count with the metric at which they were pruned. With few trials, "
    "shares are rough."
)
_PARALLEL = (
    "Each line is a trial, blue for the best metric and red for the worst; grey lines were pruned. Point at a line for "
    "its values."
)


def write_report(sweep: Sweep, study: Study, folder: SweepFolder) -> Path:
    """Write the report to the sweep's folder; a reader never finds half of it. Return the file."""
    temporary = folder.report.with_name(f".{folder.report.name}.{os.getpid()}")
    temporary.write_text(sweep_page(sweep, study, folder), encoding="utf-8")
    temporary.replace(folder.report)
    return folder.report


def importances(study: Study) -> tuple[list[tuple[str, float]], str]:
    """Return the share of each option in the differences between trials, largest first, or why there are none."""
    ended = [each for each in study.records() if each.state in ("done", "pruned") and each.value is not None]
    if len(ended) < FEWEST:
        return [], f"The importance of options is estimated from {FEWEST} trials with a metric; there are {len(ended)}."
    if len({each.value for each in ended}) == 1:
        return [], "All trials have the same metric, so no option is important."
    try:
        return study.importances(ended), ""
    except (ValueError, RuntimeError) as error:
        return [], f"The importance of options cannot be estimated: {error}"


def sweep_page(sweep: Sweep, study: Study, folder: SweepFolder) -> str:
    """Return the page."""
    records, best, metric = study.records(), study.best(), sweep.options.metric
    colours = colours_by_rank(records, is_maximised=study.is_maximised)
    shares, why_not = importances(study)
    style = (files("rlcore_sweep") / "page" / "page.css").read_text(encoding="utf-8")
    written = datetime.now().astimezone().isoformat(sep=" ", timespec="minutes")
    title = f"rlcore sweep: {folder.path.name}"
    parts = [
        tag("h1", text_of(title.removeprefix("rlcore "))),
        tag("div", text_of(f"rlcore {__version__}, {written}"), class_="dim"),
        tag("p", text_of(_about(sweep, records)), id="about"),
        _best(sweep, best, folder),
        tag("h2", "History"),
        _wide(history(records, best, is_maximised=study.is_maximised, metric=metric)),
        tag("h2", "Importance of options"),
        tag("p", text_of(why_not or _IMPORTANCE), class_="hint"),
        _wide(importance_bars(shares)) if shares else "",
        tag("h2", "Parallel coordinates"),
        tag("p", text_of(_PARALLEL), class_="hint"),
        _wide(parallel_coordinates(records, sweep.dimensions, best, metric, colours)),
        tag("h2", text_of(f"{metric} over steps")),
        _wide(learning_curves(records, best, metric, colours)),
        tag("h2", "Trials"),
        _wide(_table(sweep, records, folder)),
    ]
    head = [
        '<meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        tag("title", text_of(title)), tag("style", style),
    ]  # fmt: skip
    body = tag("body", tag("main", *(f"{part}\n" for part in parts)))
    filled = tag("head", *(f"{part}\n" for part in head))
    return f'<!doctype html>\n<html lang="en">{filled}\n{body}</html>\n'


def _about(sweep: Sweep, records: Sequence[TrialRecord]) -> str:
    options = sweep.options
    goal = "maximised" if options.mode == "max" else "minimised"
    pruned = "no pruning" if options.prune == "none" else f"pruning by {options.prune}"
    counts = f"{options.value} value of a run"
    return f"{summary(records)}; {options.metric} is {goal} ({counts}); sampler {options.sampler}, {pruned}"


def _best(sweep: Sweep, best: TrialRecord | None, folder: SweepFolder) -> str:
    if best is None or best.value is None:
        return tag("p", "No trial has finished yet.", class_="note")
    values = sweep.values(best.parameters)
    rows = "".join(
        tag("tr", tag("td", tag("code", text_of(path))), tag("td", tag("code", text_of(repr(value)))))
        for path, value in values.items()
    )
    title = tag("b", text_of(f"Best: trial {best.number}, {sweep.options.metric} {best.value:.6g}"))
    again = tag("div", tag("code", text_of(f"rlcore train {folder.best}")), class_="dim")
    return tag("div", title, tag("table", rows), again, class_="best", id="best")


def _wide(content: str) -> str:
    return tag("div", content, class_="wide")


def _table(sweep: Sweep, records: Sequence[TrialRecord], folder: SweepFolder) -> str:
    head = [
        "trial",
        "state",
        "step",
        sweep.options.metric,
        "seconds",
        *(each.path for each in sweep.dimensions),
        "reason",
        "run",
    ]
    numeric = {"trial", "step", sweep.options.metric, "seconds"}
    cells = [tag("th", text_of(name), **({"class_": "number"} if name in numeric else {})) for name in head]
    rows = [tag("tr", *cells)]
    for trial in records:
        values = sweep.values(trial.parameters)
        row = [
            tag("td", text_of(trial.number), class_="number"),
            tag("td", text_of(trial.state), class_=trial.state),
            tag("td", text_of(max(trial.measured, default="")), class_="number"),
            tag("td", text_of("" if trial.value is None else f"{trial.value:.6g}"), class_="number"),
            tag("td", text_of(f"{trial.seconds:.0f}"), class_="number"),
            *(tag("td", tag("code", text_of(show_value(values[each.path])))) for each in sweep.dimensions),
            tag("td", text_of(trial.reason), class_="reason"),
            tag("td", _link(folder, trial.number)),
        ]
        rows.append(tag("tr", *row))
    return tag("table", *rows)


def _link(folder: SweepFolder, number: int) -> str:
    """Return a link to the report of a trial's run, or to what it printed."""
    for name in (f"trials/{name_of(number)}/report.html", f"trials/{name_of(number)}.log"):
        if (folder.path / name).is_file():
            return tag("a", text_of(name.rpartition("/")[2]), href=name)
    return ""
