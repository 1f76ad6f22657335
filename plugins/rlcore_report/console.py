"""The console of a run with colours, tables of completions and a progress bar."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.text import Text

from rlcore.loggers.console import ConsoleConfig, ConsoleLogger
from rlcore.loggers.terminal import TerminalConsole
from rlcore.logging import is_progress_bar_enabled
from rlcore.safe_text import visible
from rlcore_report.completions_table import make_table
from rlcore_report.lines import LineLogger
from rlcore_report.tables import show_number

if TYPE_CHECKING:
    from rlcore.protocols import RunView

REFRESHES_PER_SECOND = 2.0
"""Refresh rate of the progress bar; kept low because its thread shares the CPU with training."""
ESTIMATE_OVER_S = 3600.0
"""Time window for estimating the remaining time; rich's default of 30 s contains too few steps."""


class RichConsole(LineLogger):
    """Logger that prints with rich: colours and a progress bar on a terminal, plain lines elsewhere; obeys NO_COLOR.

    Args:
        config: its options.
        run: the logged run.
        console: the console to print to; standard output by default.
    """

    def __init__(self, config: ConsoleConfig, run: RunView, *, console: Console | None = None) -> None:
        super().__init__(config, run)
        self._console = console or TerminalConsole(highlight=False)
        self._progress: Progress | None = None
        self._advance(run.step)

    def metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        """Print the line of a training step, or of an evaluation, and advance the bar."""
        super().metrics(step, metrics)
        self._advance(step)

    def close(self, error: BaseException | None) -> None:
        """Stop the progress bar and print the summary."""
        self._end_progress()
        super().close(error)

    def _print_line(self, kind: str, step: int, cells: Sequence[tuple[str, float]], seconds: float | None) -> None:
        line = Text.assemble((kind, "bold cyan" if kind == "eval" else "bold"), f" {self._count(step)}")
        end = "" if seconds is None else f"   {seconds:8.2f} s"
        for label, value in cells:
            cell = Text.assemble("   ", (label, "dim"), " ", show_number(value))
            if self._console.is_terminal and len(line) + len(cell) + len(end) > self._console.width:
                break
            line.append(cell)
        self._show(line.append(end, style="dim"))

    def _print_rows(self, rows: Sequence[Mapping[str, Any]], title: str) -> None:
        self._console.print(make_table(rows, title=title))

    def _print(self, text: str, word: str = "", style: str = "") -> None:
        self._show(Text.assemble((visible(word), style), visible(text)))

    def _show(self, text: Text) -> None:
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


def on_rich(console: ConsoleLogger) -> RichConsole:
    """Return the logger with rich that has the options and the run of a plain console."""
    return RichConsole(console.config, console.run)


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
