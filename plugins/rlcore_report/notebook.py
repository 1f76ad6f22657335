"""Output of a run in a notebook: one table and bar that are updated in place, and plots at the end."""

from __future__ import annotations

import importlib.util
import io
import sys
import time
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

import attrs

from rlcore.loggers.console import ConsoleConfig, ConsoleLogger
from rlcore.protocols import RunView
from rlcore.safe_text import visible
from rlcore_report.lines import MAX_CELLS, LineLogger, html_table, scores_first, short_name, show_cell, show_number

MAX_LINES = 12
"""Number of the newest lines that the table shows; metrics.jsonl has all."""
REFRESH_S = 0.5
"""Shortest time between two updates of the output, which is stored in the notebook each time."""
MAX_PLOTS = 6


def in_notebook(console: ConsoleLogger) -> NotebookLogger:
    """Return the logger of a notebook with the options and the run of a console."""
    return NotebookLogger(console.config, console.run)


def is_notebook() -> bool:
    """Return whether this process is the kernel of a notebook."""
    module = sys.modules.get("IPython")  # an imported package is not a running shell
    shell = None if module is None else module.get_ipython()
    return shell is not None and getattr(shell, "kernel", None) is not None


@attrs.frozen
class _Line:
    """A line of the table: `kind` is step or eval."""

    kind: str
    step: int
    cells: Mapping[str, float]
    seconds: float | None


@attrs.frozen
class _Page:
    """HTML for a notebook, with the text that other front ends show."""

    html: str
    text: str

    def _repr_html_(self) -> str:
        return self.html

    def __repr__(self) -> str:
        return self.text


class NotebookLogger(LineLogger):
    """Logger with one cell output, updated in place: bar, newest lines, newest completions and the summary.

    After the run, the numbers of the lines are plotted if matplotlib is installed.

    Args:
        config: its options.
        run: the logged run.
    """

    def __init__(self, config: ConsoleConfig, run: RunView) -> None:
        from IPython.display import display

        self._lines: list[_Line] = []
        self._summary: list[str] = []
        self._completions: tuple[str, Sequence[Mapping[str, Any]]] = ("", ())
        self._refreshed = -REFRESH_S
        self._output = display(_Page("", ""), display_id=True)
        super().__init__(config, run)
        self._refresh()

    def metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        """Add the line of a training step or an evaluation."""
        super().metrics(step, metrics)
        self._refresh()

    def close(self, error: BaseException | None) -> None:
        """Add the summary; if the run has ended without an error, also plot its lines."""
        super().close(error)
        self._refreshed = -REFRESH_S
        self._refresh()
        if error is None:
            plot(self._lines)

    def _print_line(self, kind: str, step: int, cells: Sequence[tuple[str, float]], seconds: float | None) -> None:
        self._lines.append(_Line(kind, step, {label: float(value) for label, value in cells}, seconds))

    def _print_rows(self, rows: Sequence[Mapping[str, Any]], title: str) -> None:
        self._completions = (title, rows)
        self._refresh()

    def _print(self, text: str, word: str = "", style: str = "") -> None:  # noqa: ARG002  the text has no style
        self._summary.append(visible(word + text))

    def _refresh(self) -> None:
        if time.monotonic() - self._refreshed >= REFRESH_S:
            self._refreshed = time.monotonic()
            parts = [self._bar(), _lines_html(self._lines[-MAX_LINES:]), _completions_html(*self._completions)]
            parts += [f"<pre>{escape(chr(10).join(self._summary))}</pre>"] if self._summary else []
            self._output.update(_Page("\n".join(parts), "\n".join(self._summary) or f"step {self.run.step}"))

    def _bar(self) -> str:
        step, total = self.run.step, self.run.total_steps
        if total is None:
            return f"<div>step {step}</div>"
        bar = f'<progress value="{step}" max="{total}"></progress> ' if self.config.progress else ""
        return f"<div>{bar}step {step} of {total}</div>"


def _lines_html(lines: Sequence[_Line]) -> str:
    labels = list(dict.fromkeys(label for line in lines for label in line.cells))
    rows = [
        [line.kind, str(line.step), *(_number(line.cells.get(label)) for label in labels), _number(line.seconds)]
        for line in lines
    ]
    return html_table(["", "step", *labels, "s"], rows) if rows else ""


def _completions_html(title: str, rows: Sequence[Mapping[str, Any]]) -> str:
    if not rows:
        return ""
    names = ("prompt", "output")
    numbers = scores_first(key for key, value in rows[0].items() if key not in ("step", *names) and show_cell(value))
    numbers = numbers[:MAX_CELLS]
    cells = [
        [*(visible(row.get(key, "")) for key in names), *(show_cell(row.get(key)) for key in numbers)] for row in rows
    ]
    return f"<div>{escape(title)}</div>" + html_table([*names, *map(short_name, numbers)], cells)


def _number(value: float | None) -> str:
    return "" if value is None else show_number(value).strip()


def plot(lines: Sequence[_Line]) -> None:
    """Display a plot of each column of the table that has several numbers; nothing without matplotlib."""
    curves: dict[str, list[tuple[int, float]]] = {}
    for line in lines:
        for label, value in line.cells.items():
            name = label if line.kind == "step" else f"{line.kind} {label}"
            curves.setdefault(name, []).append((line.step, value))
    curves = {name: points for name, points in curves.items() if len(points) > 1}
    if not curves or importlib.util.find_spec("matplotlib") is None:
        return
    from IPython.display import Image, display
    from matplotlib.figure import Figure

    shown = list(curves.items())[:MAX_PLOTS]
    columns = min(len(shown), 3)
    figure = Figure(figsize=(4 * columns, 3 * -(-len(shown) // columns)), layout="constrained")
    axes = figure.subplots(-(-len(shown) // columns), columns, squeeze=False).flatten()
    for axis, (name, points) in zip(axes, shown, strict=False):
        axis.plot(*zip(*points, strict=True))
        axis.set(title=name, xlabel="step")
    for axis in axes[len(shown) :]:
        axis.set_visible(False)
    file = io.BytesIO()
    figure.savefig(file, format="png", dpi=80)
    display(Image(data=file.getvalue()))
