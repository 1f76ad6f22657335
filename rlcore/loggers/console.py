"""Console output of a run: one line per step, a progress bar, tables of completions and a final summary."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.text import Text

from rlcore.loggers import display_row
from rlcore.loggers.console_options import ConsoleConfig
from rlcore.loggers.tables import (
    MAX_CELLS,
    SIDE_STATISTICS,
    headline_metrics,
    make_table,
    place_in,
    short_name,
    show_number,
)
from rlcore.loggers.terminal import TerminalConsole
from rlcore.logging import is_progress_bar_enabled
from rlcore.protocols import RunView
from rlcore.safe_text import hide_logins, visible

TIME_KEYS = ("time/step_s", "time/total_s")


class ConsoleLogger:
    """Logger that prints with rich: colours and a progress bar on a terminal, plain lines elsewhere; obeys NO_COLOR.

    Args:
        config: its options.
        run: the logged run.
        console: the console to print to; standard output by default.

    Attributes:
        config: its options.
        run: the logged run.
    """

    def __init__(self, config: ConsoleConfig, run: RunView, *, console: Console | None = None) -> None:
        self.config = config
        self.run = run
        self._console = console or TerminalConsole(highlight=False)
        self._last: dict[str, float] = {}
        self._started = time.monotonic()
        self._first_step = run.step
        self._progress: Progress | None = None
        self._advance(run.step)

    def metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        """Print the line of a training step, or of an evaluation."""
        evaluation = {key: value for key, value in metrics.items() if key.startswith("eval/")}
        training = {key: value for key, value in metrics.items() if key not in evaluation}
        if training:
            self._last.update(training)
            if step % self.config.every == 0 or step == self.run.total_steps:
                self._print_line("step", step, self._cells(training), training)
            self._advance(step)
        if evaluation:
            self._last.update(evaluation)
            self._print_line("eval", step, _evaluation_cells(evaluation, self.run.headline), {})

    def completions(self, step: int, rows: Sequence[Mapping[str, Any]]) -> None:
        """Print a table of the first rows: prompt, output and scores; a sweep shows rows of every sampling setting."""
        show = self.run.config.eval.show if self.config.show is None else self.config.show
        if not rows or not show:
            return
        groups: dict[Any, list[Mapping[str, Any]]] = {}
        for row in rows:
            groups.setdefault(row.get("sampling"), []).append(row)
        shown = [row for group in groups.values() for row in group[: -(-show // len(groups))]][:show]
        title = f"completions after step {step}, {len(shown)} of {len(rows)}"
        self._print_table(list(map(display_row, shown)), title)

    def close(self, error: BaseException | None) -> None:
        """Stop the progress bar and print a summary: steps, time, last metrics, folder, how to load or resume."""
        self._end_progress()
        run, steps = self.run, self.run.step - self._first_step
        summary = f"{steps} step{'' if steps == 1 else 's'} in {_duration(time.monotonic() - self._started)}"
        if error is None:
            early = run.total_steps is not None and run.step < run.total_steps
            word = ("stopped", "bold yellow") if early else ("finished", "bold green")
            resumed = f", now at step {run.step}" if self._first_step else ""
            self._print(Text.assemble(word, f": {summary}{resumed}"))
        elif isinstance(error, KeyboardInterrupt):
            self._print(Text.assemble(("interrupted", "bold yellow"), f" after step {run.step}: {summary}"))
        else:
            cause = f"{type(error).__name__}: {visible(hide_logins(str(error)))}"
            self._print(Text.assemble(("failed", "bold red"), f" after step {run.step}: {summary}\n  {cause}"))
        evaluation = {key: value for key, value in self._last.items() if key.startswith("eval/")}
        cells = _evaluation_cells(evaluation, run.headline) or self._cells(self._last)
        if cells:
            numbers = "   ".join(f"{label} {show_number(value).strip()}" for label, value in cells)
            self._print(Text(f"  {'last eval' if evaluation else 'last step'}  {numbers}"))
        self._print(Text(f"  run        {run.dir}"))
        if error is None and (run.dir / "model").is_dir():
            folder, loader = (run.dir / "model").as_posix(), run.export_class
            loader = loader if "." in loader else f"transformers.{loader}"
            self._print(Text(f'  load       {loader}.from_pretrained("{folder}")'))
        elif error is not None and any((run.dir / "checkpoints").glob("[0-9]*")):
            self._print(Text(f"  go on      run.root={run.dir.parent} run.name={run.dir.name} run.resume=auto"))
        for dropped in run.take_unreported():
            self._print(Text(f"  dropped    {visible(dropped)}", style="yellow"))

    def _cells(self, metrics: Mapping[str, float]) -> list[tuple[str, float]]:
        if self.config.metrics:
            return [(short_name(key), metrics[key]) for key in self.config.metrics if key in metrics]
        return [(short_name(key), metrics[key]) for key in headline_metrics(metrics, self.run.headline)]

    def _print_line(
        self, kind: str, step: int, cells: Sequence[tuple[str, float]], metrics: Mapping[str, float]
    ) -> None:
        total = self.run.total_steps
        count = f"{step}/{total}" if total is not None else str(step)
        width = 2 * len(str(total)) + 1 if total is not None else 6
        line = Text.assemble((kind, "bold cyan" if kind == "eval" else "bold"), f" {count:>{width}}")
        seconds = next((metrics[key] for key in TIME_KEYS if key in metrics), None)
        end = "" if seconds is None else f"   {seconds:8.2f} s"
        for label, value in cells:
            cell = Text.assemble("   ", (label, "dim"), " ", show_number(value))
            if self._console.is_terminal and len(line) + len(cell) + len(end) > self._console.width:
                break
            line.append(cell)
        self._print(line.append(end, style="dim"))

    def _print_table(self, rows: Sequence[Mapping[str, Any]], title: str) -> None:
        self._console.print(make_table(rows, title=title))

    def _print(self, text: Text) -> None:
        """Print without wrapping, so that each log entry is one line in a file."""
        self._console.print(text, soft_wrap=True)

    def _advance(self, step: int) -> None:
        """Update the progress bar, once the total number of steps is known."""
        total = self.run.total_steps
        if not (self.config.progress and self._console.is_terminal and is_progress_bar_enabled()):
            self._end_progress()
        elif total is not None:
            if self._progress is None:
                self._progress = make_progress(self._console)
                self._progress.add_task("", total=total)
            self._progress.update(self._progress.task_ids[0], completed=step, total=total)
            self._progress.start()

    def _end_progress(self) -> None:
        if self._progress is not None:
            self._progress.stop()
            self._progress = None


def _evaluation_cells(metrics: Mapping[str, float], headline: Sequence[str]) -> list[tuple[str, float]]:
    """Choose the metrics on an evaluation's line; for a sweep, all values of a metric are adjacent."""
    keys: dict[str, list[str]] = {}
    for key in metrics:
        name = key.removeprefix("eval/").partition("@")[0]
        if not name.endswith(SIDE_STATISTICS):
            keys.setdefault(name, []).append(key)
    shown: list[str] = []
    for name in sorted(keys, key=lambda name: (_distance_from_purpose(name), place_in(headline, name))):
        if len(shown) < MAX_CELLS:
            shown += keys[name]
    return [(short_name(key.removeprefix("eval/")), metrics[key]) for key in shown]


def _distance_from_purpose(name: str) -> int:
    """Rank rewards first, then values of a metric function and the loss, then response statistics."""
    if name == "reward/mean":
        return 0
    return 1 if "/" not in name else 3 if name.startswith("response/") else 2


def _duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02d} min" if hours else f"{minutes} min {rest:02d} s"


REFRESHES_PER_SECOND = 2.0
"""Refresh rate of the progress bar; kept low because its thread shares the CPU with training."""
ESTIMATE_OVER_S = 3600.0
"""Time window for estimating the remaining time; rich's default of 30 s contains too few steps."""


def make_progress(console: Console) -> Progress:
    """Return a progress bar with finished steps, elapsed and remaining time; it is shown once started."""
    return Progress(
        TextColumn("training"),
        BarColumn(bar_width=None),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        console=console,
        refresh_per_second=REFRESHES_PER_SECOND,
        speed_estimate_period=ESTIMATE_OVER_S,
    )
