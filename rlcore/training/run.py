"""One training run: what a trainer receives besides its options."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import attrs
import torch

from rlcore.components import Dropped
from rlcore.errors import ConfigError
from rlcore.loggers import Loggers
from rlcore.logging import get_logger
from rlcore.models.learner import gather_weights
from rlcore.optim.optimization import Optimizers
from rlcore.optim.updater import Updater
from rlcore.plugins.observers import Observers
from rlcore.profiling import count_tokens, note_sampled, timed
from rlcore.protocols import Learner, Policy, RolloutStore, Sampler, SequenceScorer
from rlcore.ranks import Ranks
from rlcore.rewards.score import Scored, Scorer
from rlcore.sampling.row_seeds import derive_seeds, draw_seeds
from rlcore.sampling.sampler import is_builtin
from rlcore.sampling.sampler_inputs import takes_row_seeds
from rlcore.settings import OptimizerConfig, SamplingConfig
from rlcore.sharding import choose_sharding
from rlcore.training.rollout import collect, overlaps
from rlcore.training.rollout_log import Rollouts
from rlcore.training.run_data import RunData
from rlcore.types import Metrics, Prompt, Trajectories

Evaluation = Callable[[], Metrics | tuple[Metrics, list[dict[str, Any]]]]
"""An evaluation of a trainer's own (`Run.add_evaluation`)."""


@attrs.define(eq=False, kw_only=True)
class Run(RunData):
    """One training run in one process: the policy, the data, sampling, scoring, the optimizer and the run's folder.

    Attributes:
        dir: the run's folder.
        ranks: this process's place among the processes of the run.
        observers: the observer hooks of all plugins.
        loggers: all loggers of the run.
        sampler: generates continuations.
        make_store: makes the chosen rollout store.
        make_policy: builds the policy; trainers call `build_policy`.
        make_frozen: builds another model to compare the policy with; trainers call `build_frozen`.
        make_scorer: builds the scorer; trainers call `build_scorer`.
        make_learner: builds a model of another kind; trainers call `build_learner`.
        optimizers: the optimizers and schedules that the trainer's options name.
        step: yields of the trainer so far.
        total_steps: yields after which the run ends, None where only time bounds it.
        started: clock reading at which this process began, in seconds.
        elapsed_before_s: seconds the run had taken before it was resumed.
        metrics: the last value of every metric so far.
        evaluations: the trainer's own evaluations.
        closing: closes samplers and rewards at the end of the run.
        warned: the warnings that `warn_once` has logged.
        stop_reason: why the run is to end after the current step; empty if it is not.
        was_interrupted: whether a signal ended the run.
        signalled: returns whether a signal has requested the end of the run.
        claimed: deletes the folder of a run whose first step fails; closed after the first step.
    """

    dir: Path
    ranks: Ranks
    observers: Observers
    loggers: Loggers
    sampler: Sampler
    make_store: Callable[[], RolloutStore]
    make_policy: Callable[..., Policy]
    make_frozen: Callable[[Any, Policy], Policy]
    make_scorer: Callable[[], SequenceScorer]
    make_learner: Callable[[str], Learner]
    optimizers: Optimizers
    step: int = 0
    total_steps: int | None = None
    started: float = attrs.field(factory=time.monotonic)
    elapsed_before_s: float = 0.0
    metrics: Metrics = attrs.field(factory=dict)
    evaluations: list[Evaluation] = attrs.field(factory=list)
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

    @cached_property
    def generator(self) -> torch.Generator:
        """Return the random generator of the run, in the same state on all ranks; every checkpoint contains it.

        It draws the seeds of sampling (`row_seeds`). A trainer that draws from it does so on all ranks alike.
        """
        return torch.Generator().manual_seed(self.config.run.seed * 1009)

    def build_policy(self, *, value_head: bool = False, reference: bool = False, q_heads: int = 0) -> Policy:
        """Build the policy that the configuration describes, on this process's device.

        Args:
            value_head: add a value function.
            reference: keep a reference policy with the present weights.
            q_heads: number of Q-heads to add, together with a value function; the policy is a `QPolicy` then.

        Raises:
            ModelError: the model cannot be used, or the architecture has no Q-heads.
        """
        policy = self.make_policy(value_head=value_head or q_heads > 0, reference=reference, q_heads=q_heads)
        policy.to(self.ranks.device)
        self.policy = policy
        return policy

    def build_scorer(self) -> SequenceScorer:
        """Build the scorer that the configuration describes, on this process's device.

        A run with a scorer samples nothing: prompts and reward functions have no effect.

        Raises:
            ModelError: the model cannot be used, or the architecture builds no scorers.
        """
        self.scorer = self.make_scorer()
        self.scorer.to(self.ranks.device)
        return self.scorer

    def build_learner(self, kind: str) -> Learner:
        """Build a model that is neither a policy nor a scorer, on this process's device.

        A run with such a model samples no text: the trainer generates outputs itself, scores them with `score_outputs`
        and evaluates them with `add_evaluation`.

        Args:
            kind: what the architecture states in its attribute `builds`, such as "an image pipeline".

        Raises:
            ModelError: the model cannot be used, or the architecture builds another kind.
        """
        self.other = self.make_learner(kind)
        self.other.to(self.ranks.device)
        return self.other

    def build_frozen(self, model: Any) -> Policy:
        """Build another model with the architecture and tokenizer of the run, to compare the policy with.

        Nothing of it trains, and it is in evaluation mode.

        Args:
            model: a hub id, folder or module with the policy's vocabulary.

        Raises:
            ModelError: the model cannot be used.
        """
        return self.make_frozen(model, self.built_policy)

    @property
    def temperature(self) -> float:
        """Return the temperature of the policy that samples and learns, for `policy.score(..., temperature=...)`."""
        return self.config.gen.policy_temperature

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
        return Updater(
            policy, config, self.ranks, optimization=self.optimizers.get(config),
            total_updates=None if self.total_steps is None else self.total_steps * updates_per_step,
            updates_per_step=updates_per_step, steps_done=lambda: self.step,
            sharding=choose_sharding(self.config.run, self.ranks),
        )  # fmt: skip

    def row_seeds(self, count: int, *, group: int = 1) -> list[int]:
        """Draw the seed of a round, and return the seeds of this rank's `count` rows of it.

        The seed of a row depends on its index in the round, and so not on the number of processes. `sample` calls this
        unless it receives seeds. All ranks call it equally often: a rank that has no prompts, and skips `sample`, calls
        it with a count of 0.

        Args:
            count: the number of rows.
            group: so many consecutive rows are dealt together, as `Ranks.share` does.
        """
        (seed,), whole = draw_seeds(1, self.generator), -(-count // group) * group
        return derive_seeds(seed, self.ranks.share(whole * self.ranks.world, group=group)[:count])

    @timed("generate")
    def sample(
        self,
        prompts: Sequence[Prompt],
        sampling: SamplingConfig | None = None,
        *,
        group: int = 1,
        row_seeds: Sequence[int] | None = None,
        on_batch: Callable[[list[int], Trajectories], None] | None = None,
    ) -> Trajectories:
        """Continue each prompt once with the current policy; the result lies on this process's device.

        Args:
            prompts: this rank's prompts, dealt by `Ranks.share`.
            sampling: the sampling options; by default those of `gen`.
            group: so many consecutive prompts were dealt together.
            row_seeds: a seed for each prompt; by default those of `Run.row_seeds`, so that a row is sampled alike
                whatever the number of processes, if the sampler supports that.
            on_batch: called with finished trajectories (`rlcore.protocols.Sampler`).
        """
        seeds = self.row_seeds(len(prompts), group=group) if row_seeds is None else row_seeds
        options: dict[str, Any] = {"generator": torch.Generator().manual_seed(int(seeds[0]) if len(seeds) else 0)}
        if takes_row_seeds(self.sampler):
            options["row_seeds"] = seeds
        if self.logit_mask is not None:
            options["logit_mask"] = self.logit_mask
        if on_batch is not None:
            options["on_batch"] = on_batch
        gather_weights(self.built_policy)
        with torch.no_grad():
            batch = self.sampler(self.built_policy, prompts, sampling or self.config.gen, **options)
        count_tokens(batch.action_mask)
        note_sampled(batch.action_mask)
        return batch

    @cached_property
    def rollouts(self) -> Rollouts:
        """Return the log of sampled completions."""
        return Rollouts(self.config.run.rollouts, self.ranks, self.dir)

    def score(
        self,
        prompts: Sequence[Prompt],
        batch: Trajectories,
        *,
        stop_sequences: Sequence[str] | None = None,
        where: str = "",
    ) -> Scored:
        """Score sampled continuations with the reward functions, and log some in rollouts.jsonl (`run.rollouts`).

        Args:
            prompts: B prompts.
            batch: their continuations.
            stop_sequences: strings at which outputs are cut; by default those of `gen`.
            where: the purpose of the batch, for errors; by default the step in progress.

        Raises:
            RewardError: a reward function raised or returned an unusable value.
            DataError: a sequence has no chosen token.
        """
        scored = self._scorer(stop_sequences, where)(prompts, batch)
        self.rollouts.add(prompts, batch, scored)
        return scored

    def score_outputs(self, prompts: Sequence[Prompt], outputs: Mapping[str, Any], *, where: str = "") -> Scored:
        """Score outputs that are no text with the reward functions.

        Args:
            prompts: B prompts.
            outputs: B outputs by the name of the argument that reward functions receive, such as `{"images": images}`;
                a first parameter of any other name receives the first of them.
            where: the purpose of the batch, for errors; by default the step in progress.

        Raises:
            RewardError: a reward function raised or returned an unusable value.
        """
        where = where or f"step {self.step + 1}"
        if self.reward_fn is None:
            return Scored([""] * len(prompts), torch.zeros(len(prompts)), None, {})
        rewards = self.reward_fn.score(prompts, outputs, where=where)
        return Scored([""] * len(prompts), torch.tensor(rewards.totals, dtype=torch.float32), None, rewards.by_name)

    def rollout(self, prompts: Sequence[Prompt], *, group: int = 1) -> tuple[Trajectories, Scored]:
        """Call `sample` and `score`, at the same time if `run.overlap_rewards` is set.

        Args:
            prompts: this rank's prompts.
            group: so many consecutive prompts are the same, and dealt together (`Ranks.share`); rollouts.jsonl numbers
                the groups.
        """
        sample = partial(self.sample, group=group)
        batch, scored = collect(sample, self._scorer(), prompts, overlap=self._overlaps)
        self.rollouts.add(prompts, batch, scored, group=group)
        return batch, scored

    def _scorer(self, stop_sequences: Sequence[str] | None = None, where: str = "") -> Scorer:
        stops = self.config.gen.stop_sequences if stop_sequences is None else stop_sequences
        alone, where = bool(self.data.outputs_begin_text), where or f"step {self.step + 1}"
        return Scorer(self.reward_fn, self.tokenizer, stops, alone, where)

    @cached_property
    def _overlaps(self) -> bool:
        return overlaps(self.config, self.sampler)

    @property
    def samples_exactly(self) -> bool:
        """Return whether the sampler's log-probs can replace the trainer's own: exact policy, full precision.

        In lower precision, sampling and training compute log-probs that differ by more than the ratios tolerate. Those
        of another sampler than the built-in one may be of other weights, and are never taken for the trainer's.
        """
        low_precision = self.config.model.get("sampling_dtype") is not None
        gen = self.config.gen
        is_policy = gen.is_plain and self.logit_mask is None and not low_precision
        return gen.reused_logprobs and is_policy and self.is_full_precision and is_builtin(self.sampler)

    @property
    def is_full_precision(self) -> bool:
        """Return whether forward passes run in float32 throughout."""
        weights = next(self.built_policy.module.parameters())
        is_quantized = self.config.model.get("quantization") is not None
        return self.ranks.mixed_precision == "no" and weights.dtype == torch.float32 and not is_quantized

    @property
    def export_class(self) -> str:
        """Return the name of the class that loads the trained model from the run's folder."""
        return self.learner.export_class

    def add_evaluation(self, evaluation: Evaluation) -> None:
        """Call `evaluation` at each evaluation, on every rank, and log its metrics under `eval/`.

        It returns the metrics, or a pair of them and the rows of completions.jsonl, the same on every rank.
        """
        self.evaluations.append(evaluation)

    @property
    def elapsed_s(self) -> float:
        """Return the seconds the run has taken, including the time before it was resumed."""
        return self.elapsed_before_s + time.monotonic() - self.started
