"""The plain console of a run: one line for each step and evaluation, and a last one.

A plugin may replace it (`wrap_component`) by one with colours, tables, completions and a progress bar.

Also in this file: the console and tables of everything that rich lays out; control characters in texts are escaped.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.table import Table

from rlcore.config import config, option
from rlcore.loggers import episode_metrics, main_metrics
from rlcore.safe_text import hide_logins, visible, write

if TYPE_CHECKING:
    from rlcore.protocols import RunView


@config
class ConsoleConfig:
    """Options of the console output."""

    metrics: tuple[str, ...] = option(
        (), "metrics on each step's line, by their full keys; those that the trainer names, and usual ones, if empty"
    )
    every: int = option(
        1, "number of steps between two printed lines; evaluations are always printed", ge=1, unit="steps"
    )
    show: int | None = option(None, "completions printed at an evaluation; default: `eval.show`", ge=0)
    progress: bool = option(True, "show a progress bar if the output is a terminal and a plugin draws one")


class ConsoleLogger:
    """Logger that prints plain lines to standard output.

    Args:
        config: its options.
        run: the logged run.

    Attributes:
        config: its options.
        run: the logged run.
    """

    def __init__(self, config: ConsoleConfig, run: RunView) -> None:
        self.config, self.run = config, run

    def metrics(self, step: int, metrics: Mapping[str, float]) -> None:
        """Print the line of a training step, or of an evaluation."""
        evaluation = {key.removeprefix("eval/"): value for key, value in metrics.items() if key.startswith("eval/")}
        training = {key: value for key, value in metrics.items() if not key.startswith("eval/")}
        if training and (step % self.config.every == 0 or step == self.run.total_steps):
            self._print("step", step, training, self.config.metrics)
        if evaluation:
            self._print("eval", step, evaluation)

    def completions(self, step: int, rows: Sequence[Mapping[str, object]]) -> None:
        """Print nothing: the rows are in completions.jsonl."""

    def close(self, error: BaseException | None) -> None:
        """Print whether the run has failed, or was stopped early, and its folder."""
        total, step = self.run.total_steps, self.run.step
        is_early = error is not None or (total is not None and step < total)
        ended = "stopped" if is_early else "finished"
        if error is not None:
            ended = f"{type(error).__name__}: {hide_logins(str(error))}"
        write(f"{ended} after step {step}: {self.run.dir}")

    def _print(self, kind: str, step: int, metrics: Mapping[str, float], names: Sequence[str] = ()) -> None:
        total = "" if self.run.total_steps is None else f"/{self.run.total_steps}"
        found = names or dict.fromkeys([*main_metrics(metrics, self.run.headline), *episode_metrics(metrics)])
        shown = [name for name in found if name in metrics]
        write(f"{kind} {step}{total}" + "".join(f"   {name} {float(metrics[name]):.4g}" for name in shown))


class TerminalConsole(Console):
    """A console that escapes control characters in every text that it prints; colours are not part of the texts."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Yield the segments of an object, with their texts escaped; rich's own cursor movements stay."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=visible(segment.text))


class _Console(TerminalConsole):
    """A console for which a closed pipe, as after `| head`, is not an error."""

    def on_broken_pipe(self) -> None:
        """Raise BrokenPipeError, which `rlcore.cli.main` handles; rich itself would exit with 1."""
        raise BrokenPipeError


def make_console() -> Console:
    """Return a console that wraps lines on a terminal; in a pipe, each row is one line of plain text."""
    return _Console(highlight=False) if sys.stdout.isatty() else _Console(highlight=False, width=10_000, no_color=True)


def make_list(*columns: str) -> Table:
    """Return a table without borders, with these column headers."""
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for column in columns:
        table.add_column(column, overflow="fold")
    return table
