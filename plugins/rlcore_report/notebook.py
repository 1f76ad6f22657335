"""Output of a run in a notebook: one table and bar that are updated in place; at the end its verdict and its curve."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

import attrs
import numpy as np

from rlcore.components import describe_error
from rlcore.loggers.console import ConsoleConfig, ConsoleLogger
from rlcore.protocols import RunView
from rlcore.safe_text import visible
from rlcore_report.answer import change_of, in_one_sentence, judged
from rlcore_report.lines import MAX_CELLS, LineLogger, html_table, scores_first, short_name, show_cell, show_number
from rlcore_report.metric_groups import plain_name, thinned
from rlcore_report.run_record import RunRecord, read_run

MAX_LINES = 12
"""Number of the newest lines that the table shows; metrics.jsonl has all."""
REFRESH_S = 0.5
"""Shortest time between two updates of the output, which is stored in the notebook each time."""
WIDTH, HEIGHT = 520, 160
"""Size of the curve at the end, in pixels."""


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

    After the run, its verdict, its folder and the curve of its main metric follow.

    Args:
        config: its options.
        run: the logged run.
    """

    def __init__(self, config: ConsoleConfig, run: RunView) -> None:
        from IPython.display import display

        self._lines: list[_Line] = []
        self._summary: list[str] = []
        self._ended = ""
        self._completions: tuple[str, Sequence[Mapping[str, object]]] = ("", ())
        self._refreshed = -REFRESH_S
        self._output = display(_Page("", ""), display_id=True)
        super().__init__(config, run)
        self._refresh()

    def metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        """Add the line of a training step or an evaluation."""
        super().metrics(step, metrics)
        self._refresh()

    def close(self, error: BaseException | None) -> None:
        """Add the summary, and what the run gives."""
        super().close(error)
        try:
            self._ended = ended_html(self.run.dir)
        except Exception as problem:  # noqa: BLE001  the files of a run may contain anything, and the run itself is over
            self._ended = f"<div>The run cannot be judged: {escape(visible(describe_error(problem)))}</div>"
        self._refreshed = -REFRESH_S
        self._refresh()

    def _print_line(self, kind: str, step: int, cells: Sequence[tuple[str, float]], seconds: float | None) -> None:
        self._lines.append(_Line(kind, step, {label: float(value) for label, value in cells}, seconds))

    def _print_rows(self, rows: Sequence[Mapping[str, object]], title: str) -> None:
        self._completions = (title, rows)
        self._refresh()

    def _print(self, text: str, word: str = "", style: str = "") -> None:  # noqa: ARG002  the text has no style
        self._summary.append(visible(word + text))

    def _refresh(self) -> None:
        if time.monotonic() - self._refreshed >= REFRESH_S:
            self._refreshed = time.monotonic()
            parts = [self._bar(), _lines_html(self._lines[-MAX_LINES:]), _completions_html(*self._completions)]
            parts += [f"<pre>{escape(chr(10).join(self._summary))}</pre>"] if self._summary else []
            parts.append(self._ended)
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


def _completions_html(title: str, rows: Sequence[Mapping[str, object]]) -> str:
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


def ended_html(folder: Path) -> str:
    """Return how a run ended, its verdict, its folder, and the curve of its main metric."""
    run = read_run(folder, is_running=False)
    change = change_of(run)
    verdict = in_one_sentence(run, judged(run), change)
    lines = [run.end.sentence, verdict["sentence"], f"folder: {run.folder}"]
    lines += [f"continue it with: {run.end.command}"] if run.end.command else []
    texts = "".join(f"<div>{escape(visible(line))}</div>" for line in lines)
    return texts + (_curve(run, change.metric) if change is not None else "")


def _curve(run: RunRecord, metric: str) -> str:
    """Return an image of a metric over steps: the training's as a line, the evaluations' as a dashed line."""
    names = [name for name in run.metrics if plain_name(name) == plain_name(metric) and "@" not in name]
    drawn = {name: thinned(run.metrics[name], 400) for name in names if len(run.metrics[name].known) > 1}
    if not drawn:
        return ""
    values = np.concatenate([series.known for series in drawn.values()])
    steps = np.concatenate([series.steps[np.isfinite(series.values)] for series in drawn.values()])
    low, high, first, last = float(values.min()), float(values.max()), int(steps.min()), int(steps.max())
    lines = ""
    for name, series in drawn.items():
        known = np.isfinite(series.values)
        x = 5 + (WIDTH - 10) * (series.steps[known] - first) / max(1, last - first)
        y = HEIGHT - 5 - (HEIGHT - 10) * (series.values[known] - low) / max(high - low, 1e-300)
        points = " ".join(f"{a:.1f},{b:.1f}" for a, b in zip(x.tolist(), y.tolist(), strict=True))
        dash = ' stroke-dasharray="6 3"' if name.startswith("eval/") else ""
        lines += f'<polyline points="{points}" fill="none" stroke="currentColor" stroke-width="1.5"{dash}/>'
    which = "; evaluations dashed" if len(drawn) > 1 else ""
    caption = f"{metric}, {low:.4g} to {high:.4g}, steps {first} to {last}{which}"
    return (
        f'<figure style="margin:0"><svg width="{WIDTH}" height="{HEIGHT}" role="img">{lines}</svg>'
        f"<figcaption>{escape(visible(caption))}</figcaption></figure>"
    )
