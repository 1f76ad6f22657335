"""One training run: what a trainer receives besides its options."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal, overload

import attrs

from rlcore.components import Dropped
from rlcore.errors import ConfigError
from rlcore.loggers import Loggers
from rlcore.logging import get_logger
from rlcore.optim.optimization import Optimizers
from rlcore.optim.updater import Updater
from rlcore.plugins.observers import Observers
from rlcore.protocols import Learner, Policy, RolloutStore, SequenceScorer, Sharding
from rlcore.ranks import Ranks
from rlcore.ranks.rounds import Round
from rlcore.settings import OptimizerConfig, TrainConfig
from rlcore.training.models import Models
from rlcore.training.progress import Closing, Progress
from rlcore.training.run_data import RunData
from rlcore.training.run_sampling import Sampling
from rlcore.types import Metrics, Prompt, Trajectories

Evaluation = Callable[[], Metrics | tuple[Metrics, list[dict[str, Any]]]]
"""An evaluation of a trainer's own (`Run.add_evaluation`)."""


@attrs.define(eq=False, kw_only=True)
class Run:
    """One training run in one process: the model, the data, sampling, scoring, the optimizer and the run's folder.

    Attributes:
        config: the resolved configuration.
        dir: the run's folder.
        ranks: this process's place among the processes of the run.
        models: builds the model that the run trains.
        data: the user's prompts, samples and functions.
        sampling: samples continuations and scores them.
        progress: how far the run is, and how it ends.
        closing: what the run closes at its end.
        observers: the observer hooks of all plugins.
        loggers: all loggers of the run.
        headline: the metrics that matter most, as the trainer names them.
        make_store: makes the chosen rollout store.
        evaluations: the trainer's own evaluations.
        updaters: what `updater` has returned.
    """

    config: TrainConfig
    dir: Path
    ranks: Ranks
    models: Models
    data: RunData
    sampling: Sampling
    progress: Progress
    closing: Closing
    observers: Observers
    loggers: Loggers
    headline: Sequence[str]
    make_store: Callable[[], RolloutStore]
    evaluations: list[Evaluation] = attrs.field(factory=list)
    updaters: list[Updater] = attrs.field(factory=list)
    _optimizers: Optimizers
    _make_sharding: Callable[[], Sharding]
    _warned: set[str] = attrs.field(factory=set)

    @overload
    def build(self, kind: Literal["policy"] = "policy", **parts: object) -> Policy: ...
    @overload
    def build(self, kind: Literal["scorer"], **parts: object) -> SequenceScorer: ...
    @overload
    def build(self, kind: str, **parts: object) -> Any: ...
    def build(self, kind: str = "policy", **parts: object) -> Any:
        """Build the model that the configuration describes, on this process's device (`Models.build`).

        Args:
            kind: "policy" for a language model, "scorer" for a model that scores sequences, or what the architecture
                states in its attribute `builds`, such as "an image pipeline". Only a policy samples text: a run with
                a scorer ignores prompts and reward functions, and the trainer of another kind of model generates
                outputs itself and scores them with `sampling.score_outputs`.
            parts: what the trainer needs besides the model: `value_head=True`, `reference=True` to keep a reference
                policy with the present weights, `heads={name: builder}` (`rlcore.protocols.Head`), or a part of the
                architecture's own.

        Raises:
            ModelError: the model cannot be used, or the architecture builds another kind or has no such part.
        """
        return self.models.build(kind, **parts)

    @property
    def learner(self) -> Learner:
        """Return the model that the run trains.

        Raises:
            ConfigError: the trainer has not built it yet.
        """
        return self.models.learner

    def updater(self, learner: Learner, config: OptimizerConfig, *, updates_per_step: int = 1) -> Updater:
        """Return an updater of `learner`, with the optimizer that `config` names.

        Args:
            learner: its parameters that require gradients are trained.
            config: options of the optimizer and the learning-rate schedule.
            updates_per_step: optimizer steps between two yields, if none is skipped or left out; the length of the
                schedule, and how far it advances from one yield to the next.
        """
        progress = self.progress  # not `self`: a cycle through the run would keep the model until a garbage collection
        updater = Updater(
            learner, config, self.ranks, optimization=self._optimizers.get(config),
            total_updates=None if self.total_steps is None else self.total_steps * updates_per_step,
            updates_per_step=updates_per_step, steps_done=lambda: progress.step,
            sharding=self._make_sharding(),
        )  # fmt: skip
        self.updaters.append(updater)
        return updater

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
            self.progress.total_steps = by_epochs if steps is None else min(steps, by_epochs)

    @property
    def prompts(self) -> list[Prompt]:
        """Return the training prompts, tokenised; the same on all ranks."""
        return self.data.prompts

    @property
    def samples(self) -> Sequence[Any]:
        """Return the demonstrations, tokenised (`RunData.samples`)."""
        return self.data.samples

    @property
    def temperature(self) -> float:
        """Return the temperature of the policy that samples and learns, for `policy.score(..., temperature=...)`."""
        return self.config.gen.policy_temperature

    def rollout(self, prompts: Sequence[Prompt], *, group: int = 1, at_least: int = 1) -> Round:
        """Sample `group` responses to each prompt of a round and score them (`Sampling.rollout`)."""
        return self.sampling.rollout(prompts, group=group, at_least=at_least)

    def round(self, rows: Trajectories) -> Round:
        """Return the round of which the rollout store of each process has kept its rows."""
        return Round.of(self.ranks, rows.to(self.ranks.device))

    def deal(self, rows: Trajectories) -> Round:
        """Return the round of rows that every process holds, of which each process keeps its share."""
        return Round.dealt(self.ranks, rows)

    def add_evaluation(self, evaluation: Evaluation) -> None:
        """Call `evaluation` at each evaluation, on every rank, and log its metrics under `eval/`.

        It returns the metrics, the same on every rank, or a pair of them and the rows of completions.jsonl, which are
        needed on rank 0 only. Its passes are made inside `by_block`, or at least one by every rank.
        """
        self.evaluations.append(evaluation)

    @property
    def step(self) -> int:
        """Return the number of yields of the trainer so far."""
        return self.progress.step

    @property
    def total_steps(self) -> int | None:
        """Return the number of yields after which the run ends, None where only time bounds it."""
        return self.progress.total_steps

    @property
    def metrics(self) -> Metrics:
        """Return the last value of every metric so far."""
        return self.progress.metrics

    @property
    def export_class(self) -> str:
        """Return the name of the class that loads the trained model from the run's folder."""
        return self.learner.export_class

    def request_stop(self, reason: str) -> None:
        """End the run after the current step, with a checkpoint and the trained model, as a signal does."""
        self.progress.stop_reason = self.progress.stop_reason or reason

    @property
    def is_stopping(self) -> bool:
        """Whether the run ends after the current step, because of a signal or `request_stop`."""
        return self.progress.is_stopping

    def keep_folder(self) -> None:
        """Keep the run's folder even if the first step fails."""
        self.closing.claimed.close()

    @property
    def dropped(self) -> Sequence[Dropped]:
        """Return the observers, loggers and wrappers that raised in this run and were left out of the rest of it."""
        return tuple(self.observers.fence.dropped)

    def take_unreported(self) -> Sequence[Dropped]:
        """Return those of `dropped` that no closing summary has listed yet, and count them as listed."""
        return self.observers.fence.take_unreported()

    def warn_once(self, logger: str, event: str, **fields: object) -> None:
        """Log a warning with the number of the step in progress, unless this run has logged it already.

        Args:
            logger: the logger's name, such as that of the trainer.
            event: the message; the same for every occurrence, so that figures belong into `fields`.
            fields: further fields of the log line.
        """
        if event not in self._warned:
            self._warned.add(event)
            get_logger(logger).warning(event, step=self.step + 1, **fields)
