"""The progress of a sweep: a live table on a terminal, plain lines elsewhere.

Also in this file: the trials of a sweep, in a study of Optuna.
"""

from __future__ import annotations

import itertools
import math
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Protocol, Self

import attrs
import numpy as np
import optuna
from optuna.pruners import BasePruner, HyperbandPruner, NopPruner, SuccessiveHalvingPruner
from optuna.samplers import BaseSampler, RandomSampler, TPESampler
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text
from sqlalchemy import URL

from rlcore.loggers.console import make_list
from rlcore_tools.sweep.child import Child
from rlcore_tools.sweep.space import Dimension, show_value
from rlcore_tools.sweep.sweep_options import Sweep, SweepConfig

NAME, REASON, SECONDS, DONOR, BEGUN, COMPARED = "sweep", "reason", "seconds", "donor", "begun", "compared"
BEATEN = "beaten"
BEST_SHARE = 0.25
"""Share of the trials that importances compare with the others."""
State = Literal["done", "pruned", "failed", "unfinished"]
STATES: dict[TrialState, State] = {
    TrialState.COMPLETE: "done", TrialState.PRUNED: "pruned", TrialState.FAIL: "failed",
    TrialState.RUNNING: "unfinished", TrialState.WAITING: "unfinished",
}  # fmt: skip


@attrs.frozen
class TrialRecord:
    """One trial.

    Attributes:
        number: its number, from 0.
        state: how it ended; `unfinished` while it runs, and if its sweep was interrupted.
        parameters: the study's parameter of each swept option, by its path.
        measured: the metric by the step of its measurement; nan if it was not finite.
        value: the metric that counts; None if there is none.
        reason: why it failed, or what takes its place.
        seconds: how long its processes ran.
        donor: the trial from whose checkpoint it went on, with other values; None if it began with the model.
        begun: the step of that checkpoint, or 0.
        compared: the last multiple of `min_steps` at which it was compared with others, or 0.
        is_beaten: whether it ends because others are better; its process may still finish its step and save.
        replaced_from: the trial from whose checkpoint another then takes its place; None if none does.
    """

    number: int
    state: State
    parameters: dict[str, Any]
    measured: dict[int, float]
    value: float | None
    reason: str
    seconds: float
    donor: int | None = None
    begun: int = 0
    compared: int = 0
    is_beaten: bool = False
    replaced_from: int | None = None


class Study:
    """The trials of a sweep; every change is in the file at once.

    Args:
        file: the SQLite file, created if it is missing.
        options: the sweep's options.
        dimensions: the swept options.
        total_steps: steps of every trial, if they are known; hyperband divides them.
        min_steps: steps before a trial may be pruned.
    """

    def __init__(
        self, file: Path, options: SweepConfig, dimensions: Sequence[Dimension], *, total_steps: int | None = None,
        min_steps: int = 1,
    ) -> None:  # fmt: skip
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self.options, self.dimensions, self.total_steps = options, tuple(dimensions), total_steps
        self.min_steps = options.min_steps or min_steps
        url = URL.create("sqlite", database=str(file.resolve())).render_as_string(hide_password=False)
        self._storage = optuna.storages.RDBStorage(url)
        self._study = optuna.create_study(
            storage=self._storage, study_name=NAME, load_if_exists=True,
            direction="maximize" if options.mode == "max" else "minimize",
            pruner=_pruner(options, total_steps, self.min_steps),
        )  # fmt: skip
        self._id = self._storage.get_study_id_from_name(NAME)
        self._study.sampler = _sampler(options, len(self._study.get_trials(deepcopy=False)))
        self.distributions = {each.path: each.distribution() for each in self.dimensions}

    @property
    def is_maximised(self) -> bool:
        """Whether a higher metric is better."""
        return self._study.direction == StudyDirection.MAXIMIZE

    def records(self) -> list[TrialRecord]:
        """Return all trials that have their values, in the order of their numbers."""
        found = self._study.get_trials(deepcopy=False)
        return [self._record(trial) for trial in found if set(self.distributions) <= set(trial.params)]

    def ranked(self) -> list[TrialRecord]:
        """Return the finished trials, that with the best metric first; of equal ones, the earliest is first."""
        done = [each for each in self.records() if each.state == "done" and each.value is not None]
        return sorted(done, key=lambda each: (each.value or 0.0) * (-1 if self.is_maximised else 1))

    def best(self) -> TrialRecord | None:
        """Return the finished trial with the best metric, the first of equal ones."""
        return next(iter(self.ranked()), None)

    def ask(self) -> TrialRecord | None:
        """Begin a trial; None if a grid has no further combination."""
        if self.options.sampler == "grid" and not self._study.get_trials(deepcopy=False, states=(TrialState.WAITING,)):
            combination = next(itertools.islice(self._grid(), len(self.records()), None), None)
            if combination is None:
                return None
            self._study.enqueue_trial(dict(zip(self.distributions, combination, strict=True)))
        trial = self._study.ask(self.distributions)
        return self.record(trial.number)

    def succeed(self, donor: int, step: int, parameters: dict[str, object]) -> TrialRecord:
        """Begin a trial with these parameters that goes on from another's checkpoint at `step`."""
        self._study.enqueue_trial(parameters, user_attrs={DONOR: donor, BEGUN: step})
        return self.record(self._study.ask(self.distributions).number)

    def size(self) -> int | None:
        """Return the number of combinations of a grid; None for other samplers."""
        if self.options.sampler != "grid":
            return None
        return math.prod(len(each.grid()) for each in self.dimensions)

    def _grid(self) -> Any:
        return itertools.product(*(each.grid() for each in self.dimensions))

    def record(self, number: int) -> TrialRecord:
        """Return a trial."""
        return self._record(self._frozen(number))

    def report(self, number: int, step: int, value: float) -> bool:
        """Note a measurement, and return whether the trial is to be pruned; a step that is noted already is ignored."""
        trial = self._frozen(number)
        if step in trial.intermediate_values:
            return False
        self._storage.set_trial_intermediate_value(self._trial_id(number), step, value)
        return self._study.pruner.prune(self._study, self._frozen(number))

    def note_comparison(self, number: int, step: int) -> None:
        """Note that a trial was compared with others at `step`, which happens once, also if the sweep is continued."""
        self._storage.set_trial_user_attr(self._trial_id(number), COMPARED, step)

    def note_beaten(self, number: int, donor: int | None = None) -> None:
        """Note that a trial ends because others are better: its sweep may be killed before its process has ended."""
        self._storage.set_trial_user_attr(self._trial_id(number), BEATEN, donor)

    def complete(self, number: int, value: float) -> None:
        """End a trial with its metric."""
        self._study.tell(number, value)

    def prune(self, number: int, reason: str = "") -> None:
        """End a trial that was stopped because others are better."""
        if reason:
            self._storage.set_trial_user_attr(self._trial_id(number), REASON, reason)
        with warnings.catch_warnings():  # a trial whose last metric is not finite has no value
            warnings.simplefilter("ignore")
            self._study.tell(number, state=TrialState.PRUNED)

    def fail(self, number: int, reason: str) -> None:
        """End a trial without a metric."""
        self._storage.set_trial_user_attr(self._trial_id(number), REASON, reason)
        self._study.tell(number, state=TrialState.FAIL)

    def add_seconds(self, number: int, seconds: float) -> None:
        """Add to the time of a trial that has not ended yet."""
        total = self.record(number).seconds + seconds
        self._storage.set_trial_user_attr(self._trial_id(number), SECONDS, total)

    def importances(self, trials: Sequence[TrialRecord]) -> list[tuple[str, float]]:
        """Return the share of each option in the differences between trials, largest first, by PED-ANOVA.

        Args:
            trials: trials that have a value, pruned ones with that at which they were pruned.
        """
        from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances  # imports scikit-learn, if any

        study = optuna.create_study(direction=self._study.direction)
        for each in trials:
            study.add_trial(
                optuna.create_trial(params=each.parameters, distributions=self.distributions, value=each.value)
            )
        evaluator = PedAnovaImportanceEvaluator(target_quantile=BEST_SHARE)
        return list(get_param_importances(study, evaluator=evaluator).items())

    def drop_begun(self) -> None:
        """Fail trials whose values were not chosen when a process died; they do not count."""
        for trial in self._study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
            if not set(self.distributions) <= set(trial.params):
                self.fail(trial.number, "the sweep was killed before the trial began")

    def _frozen(self, number: int) -> FrozenTrial:
        return self._study.get_trials(deepcopy=False)[number]

    def _trial_id(self, number: int) -> int:
        return self._storage.get_trial_id_from_study_id_trial_number(self._id, number)

    def _record(self, trial: FrozenTrial) -> TrialRecord:
        state = STATES[trial.state]
        return TrialRecord(
            trial.number, state, dict(trial.params), dict(trial.intermediate_values),
            trial.value if state in ("done", "pruned") else None, str(trial.user_attrs.get(REASON, "")),
            float(trial.user_attrs.get(SECONDS, 0.0)), trial.user_attrs.get(DONOR), trial.user_attrs.get(BEGUN, 0),
            trial.user_attrs.get(COMPARED, 0), BEATEN in trial.user_attrs, trial.user_attrs.get(BEATEN),
        )  # fmt: skip


def counted(measured: dict[int, float], options: SweepConfig) -> float:
    """Return the metric that counts of a run's measurements: the last one, or the best finite one.

    Raises:
        ValueError: there is none that is finite.
    """
    finite = {step: value for step, value in measured.items() if math.isfinite(value)}
    last = max(measured)
    if options.value == "last" and last not in finite:
        raise ValueError(f"{options.metric} is not finite at step {last}")
    if not finite:
        raise ValueError(f"{options.metric} is never finite")
    if options.value == "last":
        return finite[last]
    return max(finite.values()) if options.mode == "max" else min(finite.values())


def _sampler(options: SweepConfig, num_trials: int) -> BaseSampler:
    """Return the sampler; that of a continued sweep has another seed, because it would repeat its first trials."""
    seed = int(np.random.SeedSequence([options.seed, num_trials]).generate_state(1)[0])
    return TPESampler(seed=seed) if options.sampler == "tpe" else RandomSampler(seed=seed)


def _pruner(options: SweepConfig, total_steps: int | None, least: int) -> BasePruner:
    if options.prune == "asha":
        return SuccessiveHalvingPruner(min_resource=least, reduction_factor=options.reduction)
    if options.prune == "hyperband":
        most: Any = "auto" if total_steps is None else max(total_steps, least)
        return HyperbandPruner(min_resource=least, max_resource=most, reduction_factor=options.reduction)
    return NopPruner()


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
