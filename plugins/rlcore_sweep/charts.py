"""The charts of a sweep's report, as SVG without scripts; every text is escaped."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from html import escape
from typing import Any

import attrs

from rlcore.safe_text import visible
from rlcore_sweep.space import WHOLE, Dimension, show_value
from rlcore_sweep.study import TrialRecord

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
