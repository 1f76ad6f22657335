"""The report of a sweep: one HTML file without scripts, which fetches nothing.

Also in this file: the charts of a sweep's report, as SVG without scripts; every text is escaped.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Sequence
from datetime import datetime
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

import attrs

from rlcore._version import __version__
from rlcore.safe_text import visible
from rlcore_tools.sweep.screen import Study, TrialRecord, summary
from rlcore_tools.sweep.space import WHOLE, Dimension, show_value
from rlcore_tools.sweep.sweep_folder import SweepFolder, name_of
from rlcore_tools.sweep.sweep_options import Sweep

WIDTH, HEIGHT = 1000, 300
LEFT, RIGHT, TOP, BOTTOM = 70, 20, 24, 36
MOST_CHARS = 22
WORST, BEST = (214, 96, 77), (47, 111, 222)
"""Colours (red, green, blue) of the lowest and the highest rank."""


def text_of(value: object) -> str:
    """Return a text for a page: control characters and markup are escaped."""
    return escape(visible(value))


def tag(name: str, *content: str, **attributes: object) -> str:
    """Return an element; attributes are escaped, and content is markup already."""
    given = "".join(f' {key.rstrip("_").replace("_", "-")}="{text_of(each)}"' for key, each in attributes.items())
    return f"<{name}{given}>{''.join(content)}</{name}>"


@attrs.frozen
class Scale:
    """A scale from numbers to pixels.

    Attributes:
        low, high: the numbers at its ends.
        start, end: the pixels at its ends.
        is_logarithmic: whether equal ratios have equal lengths.
    """

    low: float
    high: float
    start: float
    end: float
    is_logarithmic: bool = False

    def __call__(self, value: float) -> float:
        """Return the pixel of a number."""
        low, high, value = (math.log(each) if self.is_logarithmic else each for each in (self.low, self.high, value))
        share = 0.5 if high == low else (value - low) / (high - low)
        return round(self.start + share * (self.end - self.start), 1)

    def ticks(self, count: int = 5) -> list[float]:
        """Return numbers at equal distances on the scale."""
        if self.low == self.high:
            return [self.low]
        shares = [i / (count - 1) for i in range(count)]
        if self.is_logarithmic:
            return [self.low * (self.high / self.low) ** share for share in shares]
        return [self.low + (self.high - self.low) * share for share in shares]


def _range(values: Iterable[float]) -> tuple[float, float]:
    finite = [value for value in values if math.isfinite(value)]
    low, high = min(finite, default=0.0), max(finite, default=1.0)
    margin = (high - low) * 0.05 or abs(high) * 0.05 or 1.0
    return low - margin, high + margin


def _svg(*content: str, height: float = HEIGHT, label: str) -> str:
    return tag("svg", *content, viewBox=f"0 0 {WIDTH} {height:g}", role="img", aria_label=label)


def _frame(x: Scale, y: Scale, x_ticks: Sequence[float], x_name: str) -> list[str]:
    """Return the lines and numbers of two axes."""
    parts = []
    for value in y.ticks():
        at = y(value)
        parts.append(tag("line", x1=x.start, x2=x.end, y1=at, y2=at, class_="grid"))
        parts.append(tag("text", text_of(f"{value:.4g}"), x=x.start - 6, y=at + 4, text_anchor="end"))
    parts += [tag("text", text_of(f"{each:g}"), x=x(each), y=y.start + 16, text_anchor="middle") for each in x_ticks]
    parts.append(tag("text", text_of(x_name), x=(x.start + x.end) / 2, y=y.start + 31, text_anchor="middle"))
    return parts


def _whole_ticks(low: int, high: int) -> list[float]:
    step = max(1, math.ceil((high - low) / 12))
    return list(map(float, range(low, high + 1, step)))


def history(records: Sequence[TrialRecord], best: TrialRecord | None, *, is_maximised: bool, metric: str) -> str:
    """Return the chart of each trial's metric, the best so far, and crosses for trials that failed."""
    valued = [each for each in records if each.value is not None and each.state in ("done", "pruned")]
    last = max((each.number for each in records), default=0)
    x = Scale(-0.5, last + 0.5, LEFT, WIDTH - RIGHT)
    y = Scale(*_range(each.value for each in valued if each.value is not None), HEIGHT - BOTTOM - 10, TOP)
    parts = _frame(x, y, _whole_ticks(0, last), "trial")
    so_far: list[str] = []
    top: float | None = None
    for each in valued:
        if each.state == "done" and each.value is not None:
            top = each.value if top is None else (max if is_maximised else min)(top, each.value)
            so_far.append(f"{x(each.number)},{y(top)}")
    parts.append(tag("polyline", points=" ".join(so_far), class_="so-far"))
    for each in records:
        title = tag("title", text_of(f"trial {each.number}, {each.state}: {_number(each.value) or each.reason}"))
        if each.state == "failed":
            at, floor = x(each.number), y.start + 4
            cross = f"M{at - 4},{floor - 4}L{at + 4},{floor + 4}M{at - 4},{floor + 4}L{at + 4},{floor - 4}"
            parts.append(tag("path", title, d=cross, class_="cross"))
        elif each.value is not None and math.isfinite(each.value):
            is_best = _is(each, best)
            kind = "best" if is_best else each.state
            parts.append(tag("circle", title, cx=x(each.number), cy=y(each.value), r=5 if is_best else 4, class_=kind))
    return _svg(*parts, label=f"{metric} of each trial")


def learning_curves(
    records: Sequence[TrialRecord], best: TrialRecord | None, metric: str, colours: dict[int, str]
) -> str:
    """Return the chart of the metric over steps, a line for each trial."""
    drawn = [each for each in records if any(map(math.isfinite, each.measured.values()))]
    steps = [step for each in drawn for step in each.measured]
    low, high = min(steps, default=0), max(steps, default=1)
    x = Scale(low, high if high > low else low + 1, LEFT, WIDTH - RIGHT)
    y = Scale(*_range(value for each in drawn for value in each.measured.values()), HEIGHT - BOTTOM - 10, TOP)
    parts = _frame(x, y, _whole_ticks(low, high), "step")
    for each in sorted(drawn, key=lambda trial: _is(trial, best)):
        points = [f"{x(step)},{y(value)}" for step, value in sorted(each.measured.items()) if math.isfinite(value)]
        parts.append(_line(each, best, points, colours))
    return _svg(*parts, label=f"{metric} over steps")


def parallel_coordinates(
    records: Sequence[TrialRecord], dimensions: Sequence[Dimension], best: TrialRecord | None, metric: str,
    colours: dict[int, str],
) -> str:  # fmt: skip
    """Return the chart in which each trial is a line over one axis for each swept option, and one for the metric."""
    drawn = [each for each in records if each.value is not None and each.state in ("done", "pruned")]
    across = Scale(0, len(dimensions), LEFT + 30, WIDTH - RIGHT - 60)
    top, bottom = TOP + 22, HEIGHT - BOTTOM + 20
    value_scale = Scale(*_range(each.value for each in drawn if each.value is not None), bottom, top)
    axes: list[str] = []
    for i, name in enumerate([*(each.path for each in dimensions), metric]):
        at = across(i)
        end = "end" if i == len(dimensions) else "middle"
        full = tag("title", text_of(name))
        axes.append(tag("line", x1=at, x2=at, y1=top, y2=bottom, class_="axis"))
        axes.append(tag("text", text_of(_shortened(name, from_end=True)), full, x=at, y=TOP + 4, text_anchor=end))
        for text, y in _labels(dimensions[i] if i < len(dimensions) else None, value_scale, bottom, top):
            axes.append(tag("text", text_of(_shortened(text)), tag("title", text_of(text)), x=at + 5, y=y + 4))
    lines = []
    for each in sorted(drawn, key=lambda trial: (trial.state == "done", _is(trial, best))):
        ys = [_place(one, each.parameters[one.path], bottom, top) for one in dimensions]
        points = [f"{across(i)},{y}" for i, y in enumerate([*ys, value_scale(each.value or 0.0)])]
        lines.append(_line(each, best, points, colours))
    return _svg(*lines, *axes, height=HEIGHT + 10, label="values of options and metric of each trial")


def importance_bars(shares: Sequence[tuple[str, float]]) -> str:
    """Return the chart of the share of each option in the differences between trials."""
    parts, row = [], 26
    for i, (name, share) in enumerate(shares):
        at = 10 + i * row
        parts.append(tag("text", text_of(_shortened(name, 44, from_end=True)), x=290, y=at + 13, text_anchor="end"))
        parts.append(
            tag("rect", tag("title", text_of(name)), x=300, y=at, width=round(600 * share, 1), height=17, class_="bar")
        )
        parts.append(tag("text", text_of(f"{share:.0%}"), x=306 + 600 * share, y=at + 13))
    return _svg(*parts, height=20 + row * max(1, len(shares)), label="importance of options")


def colours_by_rank(records: Sequence[TrialRecord], *, is_maximised: bool) -> dict[int, str]:
    """Return a colour for each finished trial, from that of the worst metric to that of the best."""
    done = {each.number: each.value for each in records if each.state == "done" and each.value is not None}
    ranked = sorted(set(done.values()), reverse=not is_maximised)
    shares = {value: i / max(1, len(ranked) - 1) for i, value in enumerate(ranked)}
    return {number: _mixed(shares[value]) for number, value in done.items()}


def _mixed(share: float) -> str:
    """Return the colour of a rank, from 0 for the worst to 1 for the best."""
    parts = (round(low + share * (high - low)) for low, high in zip(WORST, BEST, strict=True))
    return f"rgb({', '.join(map(str, parts))})"


def _line(trial: TrialRecord, best: TrialRecord | None, points: Sequence[str], colours: dict[int, str]) -> str:
    classes = ["trial", trial.state, *(["best"] if _is(trial, best) else [])]
    shown = ", ".join(f"{path}={show_value(value)}" for path, value in trial.parameters.items())
    title = tag("title", text_of(f"trial {trial.number}, {trial.state}, {_number(trial.value)}: {shown}"))
    colour = {"style": f"stroke: {colours[trial.number]}"} if trial.number in colours else {}
    return tag("polyline", title, points=" ".join(points), class_=" ".join(classes), **colour)


def _is(trial: TrialRecord, best: TrialRecord | None) -> bool:
    return best is not None and trial.number == best.number


def _scale(dimension: Dimension, bottom: float, top: float) -> Scale:
    return Scale(dimension.low, dimension.high, bottom, top, dimension.is_logarithmic)


def _place(dimension: Dimension, parameter: Any, bottom: float, top: float) -> float:
    if dimension.kind != "choice":
        return _scale(dimension, bottom, top)(float(parameter))
    return Scale(-0.5, len(dimension.choices) - 0.5, bottom, top)(dimension.labels.index(parameter))


def _labels(dimension: Dimension | None, of_metric: Scale, bottom: float, top: float) -> list[tuple[str, float]]:
    """Return the texts of an axis and their places; the axis of the metric is that without a dimension."""
    if dimension is not None and dimension.kind == "choice":
        return [(str(label), _place(dimension, label, bottom, top)) for label in dimension.labels]
    scale = of_metric if dimension is None else _scale(dimension, bottom, top)
    ticks = scale.ticks()
    if dimension is not None and dimension.kind in WHOLE:
        ticks = sorted({float(round(value)) for value in ticks})
    return [(f"{value:.4g}", scale(value)) for value in ticks]


def _shortened(text: str, most: int = MOST_CHARS, *, from_end: bool = False) -> str:
    if len(text) <= most:
        return text
    return f"…{text[1 - most :]}" if from_end else f"{text[: most - 1]}…"


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.6g}"


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
    style = (files("rlcore_tools.sweep") / "page" / "page.css").read_text(encoding="utf-8")
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
