"""The progress of a sweep: a live table on a terminal, plain lines elsewhere."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Protocol, Self

from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from rlcore.loggers.terminal import make_list
from rlcore_sweep.child import Child
from rlcore_sweep.space import show_value
from rlcore_sweep.study import Study, TrialRecord
from rlcore_sweep.sweep_options import Sweep

STYLES = {"done": "green", "pruned": "yellow", "failed": "red", "running": "bold", "unfinished": "dim"}
REDRAW_EVERY = 5
"""Polls of the loop between two drawings of the table."""


class Screen(Protocol):
    """What shows a sweep's progress."""

    def note(self, text: str) -> None:
        """Show a sentence about the sweep."""
        ...

    def event(self, number: int, text: str, *, matters: bool = False) -> None:
        """Show what happened to a trial."""
        ...

    def update(self, running: Mapping[int, Child]) -> None:
        """Show the trials as they are now; called often."""
        ...


class LineScreen:
    """Prints one line for each event.

    Args:
        console: where it prints.
    """

    def __init__(self, console: Console) -> None:
        self.console = console

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        return

    def note(self, text: str) -> None:
        """Print a sentence about the sweep."""
        self.console.print(Text(text), soft_wrap=True)

    def event(self, number: int, text: str, *, matters: bool = False) -> None:  # noqa: ARG002  a screen's signature
        """Print what happened to a trial."""
        self.console.print(Text(f"trial {number}: {text}"), soft_wrap=True)

    def update(self, running: Mapping[int, Child]) -> None:
        """Do nothing: every event has its line."""


class LiveScreen(LineScreen):
    """Shows the trials in a table that is updated in place, and prints only what matters above it.

    Args:
        console: a terminal.
        sweep: the sweep.
        study: its trials.
    """

    def __init__(self, console: Console, sweep: Sweep, study: Study) -> None:
        super().__init__(console)
        self.sweep, self.study = sweep, study
        self._live = Live(console=console, auto_refresh=False, transient=True)
        self._polls = 0

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._live.stop()

    def event(self, number: int, text: str, *, matters: bool = False) -> None:
        """Print what happened to a trial, if it matters; the table has the rest."""
        if matters:
            super().event(number, text)

    def update(self, running: Mapping[int, Child]) -> None:
        """Draw the table."""
        self._polls += 1
        if self._polls % REDRAW_EVERY == 1:
            records = self.study.records()
            room = max(5, self.console.height - 4)
            shown = _first(records, running, self.study)[:room]
            table = trial_table(shown, self.sweep, running)
            self._live.update(table, refresh=True)


def _first(records: Sequence[TrialRecord], running: Mapping[int, Child], study: Study) -> list[TrialRecord]:
    """Return the trials in the order in which a small table shows them: running ones, then the best."""

    def place(trial: TrialRecord) -> tuple[bool, bool, float, int]:
        value = math.inf if trial.value is None else -trial.value if study.is_maximised else trial.value
        return (trial.number not in running, trial.state != "done", value, -trial.number)

    return sorted(records, key=place)


def trial_table(records: Sequence[TrialRecord], sweep: Sweep, running: Mapping[int, Child]) -> Table:
    """Return a table of trials: state, step, metric, time, values, and why a trial failed."""
    table = make_list(
        "trial", "state", "step", sweep.options.metric, "time", *(each.path for each in sweep.dimensions), ""
    )
    for trial in records:
        child = running.get(trial.number)
        state = "running" if child is not None else trial.state
        step = child.metrics.last_step if child is not None else max(trial.measured, default=0)
        last = trial.measured[max(trial.measured)] if trial.measured else None
        value = last if trial.value is None else trial.value
        values = sweep.values(trial.parameters)
        cells: list[str | Text] = [
            str(trial.number), Text(state, style=STYLES[state]), str(step), "" if value is None else f"{value:.6g}",
            f"{trial.seconds + (child.seconds if child is not None else 0):.0f} s",
            *(show_value(values[each.path]) for each in sweep.dimensions), trial.reason,
        ]  # fmt: skip
        table.add_row(*(cell if isinstance(cell, Text) else Text(cell) for cell in cells))
    return table


def summary(records: Sequence[TrialRecord]) -> str:
    """Return how many trials ended in which way."""
    counts = {
        state: sum(each.state == state for each in records) for state in ("done", "pruned", "failed", "unfinished")
    }
    shown = ", ".join(f"{count} {state}" for state, count in counts.items() if count)
    return f"{len(records)} trials{': ' if shown else ''}{shown}"
