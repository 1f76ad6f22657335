"""The loop of a sweep: start trials, read their metrics, prune, and record how each ends."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import attrs

from rlcore.checkpoints.run_folder import is_locked
from rlcore.errors import CheckpointError, ConfigError
from rlcore_tools.sweep.child import (
    Child,
    Interruptions,
    MetricFile,
    Why,
    command_for,
    environment_of,
    missing_metric,
    start,
    thinned,
)
from rlcore_tools.sweep.screen import Screen, Study, TrialRecord, counted
from rlcore_tools.sweep.space import show_value
from rlcore_tools.sweep.succession import Population, settings_of, write_best
from rlcore_tools.sweep.sweep_folder import SweepFolder, checkpoint_of, write_yaml
from rlcore_tools.sweep.sweep_options import Sweep

POLL_S = 0.2


@attrs.define(eq=False)
class SweepLoop:
    """A sweep in progress.

    Attributes:
        sweep: the sweep.
        folder: its folder, claimed and locked.
        study: its trials.
        screen: shows the progress.
        gpus: names of the GPUs that trials divide.
        command: returns the command that trains with a configuration file.
        variables: environment variables of all trials.
    """

    sweep: Sweep
    folder: SweepFolder
    study: Study
    screen: Screen
    gpus: list[str] = attrs.field(factory=list)
    command: Callable[[Path], list[str]] = command_for
    variables: Mapping[str, str] = attrs.field(factory=dict)
    _population: Population = attrs.field(init=False)
    _running: dict[int, Child] = attrs.field(factory=dict)
    _slots: dict[int, int] = attrs.field(factory=dict)
    _waiting: list[int] = attrs.field(factory=list)
    _begun: float = attrs.field(factory=time.monotonic)
    _failed: int = 0
    _succeeded: int = 0
    _fatal: str = ""
    _is_late: bool = False
    _has_noted_wait: bool = False

    def __attrs_post_init__(self) -> None:
        """Make what replaces trials."""
        self._population = Population(self.sweep, self.folder, self.study)

    def run(self) -> None:
        """Run trials until there are enough of them, or until the time is over.

        Raises:
            ConfigError: no run has the metric.
            KeyboardInterrupt: Ctrl-C or SIGTERM; the trials have saved and ended, and the same command continues them.
        """
        self.study.drop_begun()
        self._waiting = [each.number for each in self.study.records() if each.state == "unfinished"]
        with Interruptions() as interruptions:
            try:
                while self._fill() or self._running:
                    self._watch()
                    self.screen.update(self._running)
                    interruptions.pause(POLL_S)
            except KeyboardInterrupt:
                self._end_all(interruptions, "Ctrl-C again ends them at once")
                raise
            finally:
                for child in list(self._running.values()):
                    child.why = child.why or "end"
                    child.kill()
                    self._ended(child)
        if self._fatal:
            raise ConfigError(self._fatal)

    @property
    def is_late(self) -> bool:
        """Whether the time of the sweep is over."""
        limit = self.sweep.options.time_s
        return limit is not None and time.monotonic() - self._begun > limit

    def _fill(self) -> bool:
        """Start trials while there is room; return whether any may start later."""
        if self.is_late and not self._is_late:
            self._is_late = True
            self.screen.note(
                f"the sweep's time of {self.sweep.options.time_s:g} s is over; the same command continues it"
            )
            for child in self._running.values():
                child.stop("end")
        while len(self._running) < self.sweep.options.parallel and self._may_start():
            if self._waiting:
                number = next(filter(self._is_free, self._waiting), None)
                if number is None:
                    self._note_wait()
                    return True
                self._waiting.remove(number)
                trial = self.study.record(number)
                if trial.is_beaten:  # the sweep was killed before the trial had ended
                    self._leave(trial)
                else:
                    self._start(trial, is_new=False)
                continue
            if self._population.is_full or not self._has_trials_left() or (asked := self.study.ask()) is None:
                return False
            self._start(asked, is_new=True)
        return self._may_start()

    def _has_trials_left(self) -> bool:
        """Return whether a trial may begin beside those that will take the place of stopped ones."""
        records = self.study.records()
        to_come = sum(each.state == "unfinished" and each.replaced_from is not None for each in records)
        return len(records) + to_come < self.sweep.options.trials

    def _is_free(self, number: int) -> bool:
        """Return whether no process writes to a trial's run: one of a sweep that was killed may still do so."""
        return not is_locked(self.folder.run(number))

    def _note_wait(self) -> None:
        if not self._has_noted_wait:
            self._has_noted_wait = True
            self.screen.note("waiting for processes of a sweep that was killed, which finish their step and save")

    def _may_start(self) -> bool:
        limit = self.sweep.options.max_failed
        if limit and self._failed >= limit and not self._succeeded and not self._fatal:
            self.screen.note(f"{self._failed} trials have failed and none has succeeded: no further one starts")
            self._fatal = (
                f"the first {self._failed} trials have all failed (see above, and the logs in {self.folder.trials})"
            )
        return not (self._fatal or self._is_late)

    def _start(self, trial: TrialRecord, *, is_new: bool) -> None:
        number, values = trial.number, self.sweep.values(trial.parameters)
        try:
            settings = settings_of(self.sweep, self.folder, trial)
        except CheckpointError as error:
            self._fail(number, str(error))
            return
        file = self.folder.configuration(number)
        write_yaml(file, settings, [f"# trial {number} of {self.folder.path}"])
        slot = min(set(range(self.sweep.options.parallel)) - set(self._slots.values()))
        environment = {} if settings["run"].get("cluster") else environment_of(
            slot, self.sweep.options.parallel, gpus=self.gpus, cores=os.cpu_count() or 1,
            processes=settings["run"].get("processes", 1),
        )  # fmt: skip
        metrics = MetricFile(self.folder.run(number) / "metrics.jsonl", self.sweep.options.metric)
        shown = ", ".join(f"{path}={show_value(value)}" for path, value in values.items())
        step = None if is_new else checkpoint_of(self.folder.run(number))
        again = "is run again, because it has no checkpoint" if step is None else f"resumes from step {step}"
        if step is None and trial.donor is not None:
            again = f"goes on from step {trial.begun} of trial {trial.donor}"
        self.screen.event(number, shown if is_new else f"{again}; {shown}", matters=not is_new)
        self._slots[number] = slot
        self._running[number] = start(
            number,
            self.command(file),
            log=self.folder.log(number),
            metrics=metrics,
            environment={**environment, **self.variables},
        )

    def _watch(self) -> None:
        """Read what running trials have measured, stop those that are to stop, and record those that have ended."""
        for child in list(self._running.values()):
            has_ended = child.process.poll() is not None  # before reading, so that nothing is missed
            known = self.study.record(child.number).measured  # a trial that resumes has them in its file too
            new = [(step, value) for step, value in child.metrics.read() if step not in known]
            for step, value in thinned(new, self.sweep.options.mode, self._population.every):
                self._measured(child, step, value)
            if child.metrics.is_missing:
                child.stop("metric")
            limit = self.sweep.options.trial_time_s
            if limit is not None and self.study.record(child.number).seconds + child.seconds > limit:
                child.stop("late")
            child.urge()
            if has_ended:
                self._ended(child)
        for child in self._running.values():  # after all have been read: their order makes no difference
            self._compare(child)

    def _measured(self, child: Child, step: int, value: float) -> None:
        is_worse = self.study.report(child.number, step, value)
        self.screen.event(child.number, f"step {step}, {self.sweep.options.metric} {value:.6g}")
        if is_worse and not self._is_over(step):
            self.study.note_beaten(child.number)
            child.stop("pruned")

    def _is_over(self, step: int) -> bool:
        return self.study.total_steps is not None and step >= self.study.total_steps

    def _compare(self, child: Child) -> None:
        """Stop a trial whose place another is to take."""
        if child.why or self._is_over(child.metrics.last_step) or not self._has_trials_left():
            return
        donor = self._population.find_donor(child.number)
        if donor is not None and self._population.stop(child.number, donor):
            child.stop("replaced")

    def _ended(self, child: Child) -> None:
        """Record how a trial ended; one that the end of the sweep stopped stays unfinished."""
        child.kill()  # what the run has started may have outlived it
        number = child.number
        del self._running[number], self._slots[number]
        self.study.add_seconds(number, child.seconds)
        why: Why = child.why
        trial = self.study.record(number)
        if trial.is_beaten and why in ("pruned", "replaced", "end"):
            self._leave(trial)
        elif why == "end" or child.was_interrupted():
            self.screen.event(number, "is unfinished; the same command continues it", matters=True)
        elif why == "late":
            self._fail(number, f"took longer than {self.sweep.options.trial_time_s:g} s, the time of a trial")
        elif why == "metric":
            self._lacks_metric(child)
        elif reason := child.failure():
            self._fail(number, reason)
        else:
            self._complete(child)
        self._drop_weights()

    def _leave(self, trial: TrialRecord) -> None:
        """Record the end of a trial that is worse than others, and begin that which takes its place, if any."""
        self._succeeded += 1
        number, step = trial.number, max(trial.measured, default=trial.begun)
        if trial.replaced_from is None:
            self.study.prune(number)
            self.screen.event(number, f"pruned at step {step}")
            return
        self._waiting += self._population.replace(number, trial.replaced_from)
        self.screen.event(number, f"stopped at step {step}; {self.study.record(number).reason}")

    def _drop_weights(self) -> None:
        """Delete checkpoints and models of ended trials that are not among the best."""
        if most := self.sweep.options.keep_best:
            kept = {each.number for each in self.study.ranked()[:most]}
            for each in self.study.records():
                if each.state != "unfinished" and each.number not in kept:
                    self.folder.drop_weights(each.number)

    def _complete(self, child: Child) -> None:
        trial = self.study.record(child.number)
        measured = trial.measured
        if not measured and trial.donor is not None:
            reason = f"ended before a measurement after step {trial.begun} of trial {trial.donor}"
            self.study.prune(child.number, reason)
            self.screen.event(child.number, reason, matters=True)
            return
        if not measured:
            self._lacks_metric(child)
            return
        try:
            value = counted(measured, self.sweep.options)
        except ValueError as error:
            self._fail(child.number, str(error))
            return
        self._succeeded += 1
        self.study.complete(child.number, value)
        best = self.study.best()
        is_best = best is not None and best.number == child.number
        self.screen.event(child.number, f"done, {value:.6g}{' (best so far)' if is_best else ''}")
        if is_best:
            write_best(self.sweep, self.folder, self.study)

    def _lacks_metric(self, child: Child) -> None:
        reason = missing_metric(self.sweep.options.metric, child.metrics.names)
        self._fail(child.number, reason)
        self._fatal = self._fatal or reason
        for other in self._running.values():
            other.stop("end")

    def _fail(self, number: int, reason: str) -> None:
        self._failed += 1
        self.study.fail(number, reason)
        self.screen.event(number, f"failed: {reason}", matters=True)

    def _end_all(self, interruptions: Interruptions, hint: str) -> None:
        """Signal all trials to finish their step and save, and wait for them; a second Ctrl-C kills them."""
        if not self._running:
            return
        try:
            self.screen.note(f"waiting for {len(self._running)} trials to finish their step and save; {hint}")
            for child in self._running.values():
                child.stop("end")
            while self._running:
                for child in list(self._running.values()):
                    child.urge()
                    if child.process.poll() is not None:
                        self._ended(child)
                interruptions.pause(POLL_S / 4)
        except KeyboardInterrupt:
            self.screen.note("ended at once; trials continue from their last checkpoints")
