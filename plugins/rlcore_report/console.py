"""The console of a run with colours, tables of completions and a progress bar.

Also in this file: tables of sampled completions on a terminal.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from rich.cells import cell_len, set_cell_size
from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.measure import Measurement
from rich.padding import Padding
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from rlcore.loggers.console import ConsoleConfig, ConsoleLogger, TerminalConsole
from rlcore.logging import is_progress_bar_enabled
from rlcore.safe_text import visible
from rlcore_report.lines import (
    MAX_CELLS,
    OUTPUT_CHARS,
    PROMPT_CHARS,
    LineLogger,
    scores_first,
    short_name,
    show_cell,
    show_number,
)

if TYPE_CHECKING:
    from rlcore.protocols import RunView


HEAD_WIDTH = 10
"""Width at which the names of columns of numbers are broken, so that the texts beside them keep theirs."""
PROMPT_LINES = 4
TEXT_COLUMNS = ("sampling", "end")
"""Columns of text, shown if a row has them."""
_ROLE = re.compile(r"[a-z]{1,12}: ")


def make_table(rows: Sequence[Mapping[str, object]], *, title: str, whole: bool = False) -> Table:
    """Return a table of prompts, outputs and scores.

    Args:
        rows: rows of completions.jsonl or rollouts.jsonl.
        title: title above the table.
        whole: show complete texts; else the end of the prompt's last lines, and the beginning of the output.
    """
    present, words, numbers = _columns(rows)
    table = Table(title=Text(title), title_justify="left")
    if "step" in present:
        table.add_column("step", justify="right", no_wrap=True)
    table.add_column("prompt", overflow="fold", ratio=1)
    table.add_column("output", overflow="fold", ratio=2)
    for key in words:
        table.add_column(key)
    for key in numbers:
        table.add_column(Text(_break_name(visible(short_name(key)))), justify="right", no_wrap=True)
    for row in rows:
        prompt, output = visible(row.get("prompt", "")), visible(row.get("output", ""))
        if not whole:
            output = output if len(output) <= OUTPUT_CHARS else output[:OUTPUT_CHARS] + "…"
        steps = [show_cell(row.get("step"))] if "step" in present else []
        cells: list[str | Text] = [
            *(Text(visible(row.get(key, ""))) for key in words),
            *(show_cell(row.get(key)) for key in numbers),
        ]
        shown = Text(prompt, style="dim") if whole else _LineEnds(prompt)
        table.add_row(*steps, shown, Text(output), *cells)
    return table


def _columns(rows: Sequence[Mapping[str, object]]) -> tuple[dict[str, None], list[str], list[str]]:
    """Return the columns of rows beside prompt and output: all, those of text, and those of numbers."""
    present = dict.fromkeys(
        key for row in rows for key, value in row.items() if key in TEXT_COLUMNS or show_cell(value)
    )
    words = [key for key in present if key in TEXT_COLUMNS]
    return present, words, scores_first(key for key in present if key not in ("step", *words))[:MAX_CELLS]


def room_for_texts(rows: Sequence[Mapping[str, object]], width: int) -> int:
    """Return the columns of a terminal that a table of the rows leaves to prompts and outputs."""
    present, words, numbers = _columns(rows)
    taken = 7  # the frame of both texts
    for key in [*(["step"] if "step" in present else []), *words, *numbers]:
        head = _break_name(visible(short_name(key))) if key in numbers else key
        cells = (str(row.get(key, "")) if key in words else show_cell(row.get(key)) for row in rows)
        taken += 3 + max(cell_len(text) for text in (*head.split("\n"), *cells))
    return width - taken


def stacked(row: Mapping[str, object], *, whole: bool = False) -> list[RenderableType]:
    """Return a row for a narrow terminal: its numbers in a line, and below them the prompt and the output."""
    _, words, numbers = _columns([row])
    facts = [*(["step"] if "step" in row else []), *words, *numbers]
    line = "  ".join(
        f"{visible(short_name(key))} {visible(row[key]) if key in words else show_cell(row[key])}" for key in facts
    )
    prompt, output = visible(row.get("prompt", "")), visible(row.get("output", ""))
    output = output if whole or len(output) <= OUTPUT_CHARS else output[:OUTPUT_CHARS] + "…"
    shown = Text(prompt, style="dim") if whole else _LineEnds(prompt)
    return [Text(f"\n{line}", style="bold"), Padding(shown, (0, 0, 0, 2)), Padding(Text(output), (0, 0, 0, 2))]


def _break_name(name: str) -> str:
    """Break a long name of a metric into lines, after its separators."""
    lines = [""]
    for part in re.findall(r"[^_/@=]*[_/@=]|[^_/@=]+", name):
        if lines[-1] and len(lines[-1]) + len(part) > HEAD_WIDTH:
            lines.append("")
        lines[-1] += part
    return "\n".join(lines)


class _LineEnds:
    """The last lines of a text, of each the end, in the width that is available, since all prompts may begin alike.

    The role in front of a message stays.
    """

    def __init__(self, text: str) -> None:
        lines = text.split("\n")
        self._lines = lines if len(lines) <= PROMPT_LINES else ["…", *lines[-PROMPT_LINES:]]
        self._width = max(2, *(min(cell_len(line), PROMPT_CHARS + 1) for line in self._lines))

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width = max(min(options.max_width, self._width), 2)
        yield Text("\n".join(_line_end(line, width) for line in self._lines), style="dim", no_wrap=True)

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        return Measurement(2, self._width).with_maximum(options.max_width)


def _line_end(line: str, width: int) -> str:
    if cell_len(line) <= width:
        return line
    begun = _ROLE.match(line)
    role = begun[0] if begun and 2 * len(begun[0]) < width else ""
    return f"{role}…{set_cell_size(line[::-1], width - 1 - len(role))[::-1]}"


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

    def _print_rows(self, rows: Sequence[Mapping[str, object]], title: str) -> None:
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
