"""One training run: what a trainer receives besides its options."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any

import attrs

from rlcore.components import Dropped
from rlcore.errors import ConfigError
from rlcore.loggers import Loggers
from rlcore.logging import get_logger
from rlcore.optim.optimization import Optimizers
from rlcore.optim.updater import Updater
from rlcore.plugins.observers import Observers
from rlcore.protocols import Learner, Sharding
from rlcore.settings import OptimizerConfig
from rlcore.training.run_sampling import RunSampling
from rlcore.types import Metrics

Evaluation = Callable[[], Metrics | tuple[Metrics, list[dict[str, Any]]]]
"""An evaluation of a trainer's own (`Run.add_evaluation`)."""


@attrs.define(eq=False, kw_only=True)
class Run(RunSampling):
    """One training run in one process: the policy, the data, sampling, scoring, the optimizer and the run's folder.

    Attributes:
        observers: the observer hooks of all plugins.
        loggers: all loggers of the run.
        optimizers: the optimizers and schedules that the trainer's options name.
        make_sharding: returns the strategy that `run.shard` names.
        total_steps: yields after which the run ends, None where only time bounds it.
        started: clock reading at which this process began, in seconds.
        elapsed_before_s: seconds the run had taken before it was resumed.
        metrics: the last value of every metric so far.
        headline: the metrics that matter most, as the trainer names them.
        evaluations: the trainer's own evaluations.
        closing: closes samplers and rewards at the end of the run.
        warned: the warnings that `warn_once` has logged.
        stop_reason: why the run is to end after the current step; empty if it is not.
        was_interrupted: whether a signal ended the run.
        signalled: returns whether a signal has requested the end of the run.
        claimed: deletes the folder of a run whose first step fails; closed after the first step.
    """

    observers: Observers
    loggers: Loggers
    optimizers: Optimizers
    make_sharding: Callable[[], Sharding]
    total_steps: int | None = None
    started: float = attrs.field(factory=time.monotonic)
    elapsed_before_s: float = 0.0
    metrics: Metrics = attrs.field(factory=dict)
    headline: Sequence[str] = ()
    evaluations: list[Evaluation] = attrs.field(factory=list)
    updaters: list[Updater] = attrs.field(factory=list)
    closing: ExitStack = attrs.field(factory=ExitStack)
    warned: set[str] = attrs.field(factory=set)
    stop_reason: str = ""
    was_interrupted: bool = False
    signalled: Callable[[], bool] = lambda: False
    claimed: ExitStack = attrs.field(factory=ExitStack)

    def request_stop(self, reason: str) -> None:
        """End the run after the current step, with a checkpoint and the trained model, as a signal does."""
        self.stop_reason = self.stop_reason or reason

    @property
    def is_stopping(self) -> bool:
        """Whether the run ends after the current step, because of a signal or `request_stop`."""
        return bool(self.stop_reason) or self.signalled()

    def keep_folder(self) -> None:
        """Keep the run's folder even if the first step fails."""
        self.claimed.close()

    def close_at_end(self, built: Any, plugin: str) -> None:
        """Call `built.close()`, if there is such a method, at the end of the run; an error in it is logged."""
        if callable(close := getattr(built, "close", None)):
            self.closing.callback(self._close, close, plugin)

    def open_reward(self, function: Any, plugin: str) -> None:
        """Pass the run to the method `open` of a registered reward, if it has one, and close the reward at the end."""
        self.close_at_end(function, plugin)
        if callable(begin := getattr(function, "open", None)):
            begin(self)

    def _close(self, close: Callable[[], None], plugin: str) -> None:
        try:
            close()
        except (Exception, SystemExit) as error:  # noqa: BLE001  a plugin may raise anything
            self.observers.fence.drop(plugin, "close", self.step, error, event="could not be closed")

    @property
    def dropped(self) -> Sequence[Dropped]:
        """Return the observers, loggers and wrappers that raised in this run and were left out of the rest of it."""
        return tuple(self.observers.fence.dropped)

    def take_unreported(self) -> Sequence[Dropped]:
        """Return those of `dropped` that no closing summary has listed yet, and count them as listed."""
        return self.observers.fence.take_unreported()

    def warn_once(self, logger: str, event: str, **fields: Any) -> None:
        """Log a warning with the number of the step in progress, unless this run has logged it already.

        Args:
            logger: the logger's name, such as that of the trainer.
            event: the message; the same for every occurrence, so that figures belong into `fields`.
            fields: further fields of the log line.
        """
        if event not in self.warned:
            self.warned.add(event)
            get_logger(logger).warning(event, step=self.step + 1, **fields)

    def plan_steps(self, steps_per_epoch: float | None) -> None:
        """Set the number of steps from `run.epochs` and the number of yields in one pass over the data.

        Raises:
            ConfigError: `run.epochs` is set, and the number of yields is None, as for a stream.
        """
        epochs, steps = self.config.run.epochs, self.config.run.steps
        if epochs is not None and steps_per_epoch is None:
            raise ConfigError(
                f"run.epochs = {epochs:g}: the samples are streamed, so the length of a pass is unknown; set run.steps "
                "or run.time_s instead"
            )
        if epochs is not None and steps_per_epoch is not None:
            by_epochs = max(1, math.ceil(epochs * steps_per_epoch - 1e-9))
            self.total_steps = by_epochs if steps is None else min(steps, by_epochs)

    def updater(self, policy: Learner, config: OptimizerConfig, *, updates_per_step: int = 1) -> Updater:
        """Return an updater of `policy`, with the optimizer that `config` names.

        Args:
            policy: its parameters that require gradients are trained.
            config: options of the optimizer and the learning-rate schedule.
            updates_per_step: optimizer steps between two yields, if none is skipped or left out; the length of the
                schedule, and how far it advances from one yield to the next.
        """
        updater = Updater(
            policy, config, self.ranks, optimization=self.optimizers.get(config),
            total_updates=None if self.total_steps is None else self.total_steps * updates_per_step,
            updates_per_step=updates_per_step, steps_done=lambda: self.step,
            sharding=self.make_sharding(),
        )  # fmt: skip
        self.updaters.append(updater)
        return updater

    @property
    def num_skipped(self) -> int:
        """Return the number of optimizer steps that the updaters of this run have skipped, or that were left out."""
        return sum(updater.num_skipped for updater in self.updaters)

    def add_evaluation(self, evaluation: Evaluation) -> None:
        """Call `evaluation` at each evaluation, on every rank, and log its metrics under `eval/`.

        It returns the metrics, the same on every rank, or a pair of them and the rows of completions.jsonl, which are
        needed on rank 0 only.
        """
        self.evaluations.append(evaluation)

    @property
    def elapsed_s(self) -> float:
        """Return the seconds the run has taken, including the time before it was resumed."""
        return self.elapsed_before_s + time.monotonic() - self.started
