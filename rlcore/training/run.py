"""What an algorithm is handed besides its options: the policy, the data, sampling, scoring, and a place on disk."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import attrs
import torch
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from rlcore.components import Dropped
from rlcore.config import evolve
from rlcore.data.logit_masks import load_logit_mask
from rlcore.data.sample_rewards import SampleReward, build_sample_rewards
from rlcore.data.sources import load_reference
from rlcore.errors import ConfigError
from rlcore.loggers import Loggers
from rlcore.optim.choose import Optimizers
from rlcore.optim.updater import Updater
from rlcore.plugins.observers import Observers
from rlcore.profiling import count_tokens, note_sampled, timed
from rlcore.protocols import Policy, PromptPipeline, RolloutStore, SamplePipeline, Sampler
from rlcore.ranks import Ranks
from rlcore.rewards.combine import Rewards
from rlcore.rewards.score import Scored, Scorer
from rlcore.settings import DataConfig, OptimizerConfig, SamplingConfig, TrainConfig
from rlcore.training.inputs import Inputs
from rlcore.training.rollout import collect, overlaps
from rlcore.training.rollout_log import Rollouts
from rlcore.types import Metrics, Prompt, Sample, Trajectories, to_device


@attrs.define(eq=False)
class Run:
    """Stand for one training run in one process; what a trainer may use is documented method by method.

    Attributes:
        config: the resolved configuration.
        dir: the run's folder.
        ranks: this process's place among the others.
        inputs: what the user brought.
        sampler: what generates continuations.
        build_prompts: the pipeline that turns a source into prompts.
        build_samples: the pipeline that turns a source into demonstrations.
        make_store: builds the chosen rollout store.
        make_rewards: loads the reward functions.
        optimizers: the optimizers and schedules that the trainer's options name.
        step: yields of the trainer so far.
        total_steps: yields after which the run ends, None where only time bounds it.
        metrics: the last value of every metric so far.
    """

    config: TrainConfig
    dir: Path
    ranks: Ranks
    inputs: Inputs
    observers: Observers
    loggers: Loggers
    sampler: Sampler
    build_prompts: PromptPipeline
    build_samples: SamplePipeline
    make_store: Callable[[], RolloutStore]
    make_policy: Callable[..., Policy]
    make_rewards: Callable[[], Rewards]
    optimizers: Optimizers
    step: int = 0
    total_steps: int | None = None
    started: float = attrs.field(factory=time.monotonic)
    elapsed_before_s: float = 0.0
    policy: Policy | None = None
    metrics: Metrics = attrs.field(factory=dict)
    evaluations: list[Callable[[], Metrics]] = attrs.field(factory=list)

    @property
    def dropped(self) -> Sequence[Dropped]:
        """Return the observers, loggers and wrappers that raised in this run and were left out of the rest of it."""
        return tuple(self.observers.fence.dropped)

    def take_unreported(self) -> Sequence[Dropped]:
        """Return those of `dropped` that no closing summary has listed yet, and count them as listed."""
        return self.observers.fence.take_unreported()

    @cached_property
    def generator(self) -> torch.Generator:
        """Return the source of this process's sampling randomness; its state is part of every checkpoint."""
        return torch.Generator().manual_seed(self.config.run.seed * 1009 + self.ranks.rank)

    def build_policy(self, *, value_head: bool = False, reference: bool = False, q_heads: int = 0) -> Policy:
        """Build the policy the user asked for, on this process's device.

        Args:
            value_head: give it a value function.
            reference: keep it as it is now to compare with later.
            q_heads: give it so many Q-heads, and a value function; it is a `QPolicy` then.

        Raises:
            ModelError: the model cannot be used, or the architecture makes no Q-heads.
        """
        policy = self.make_policy(value_head=value_head or q_heads > 0, reference=reference, q_heads=q_heads)
        policy.to(self.ranks.device)
        self.policy = policy
        return policy

    @property
    def _built(self) -> Policy:
        if self.policy is None:
            raise ConfigError("a trainer must call run.build_policy before it asks for prompts or samples")
        return self.policy

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        """Return the policy's tokenizer."""
        return self._built.tokenizer

    @cached_property
    def prompts(self) -> list[Prompt]:
        """Return the training prompts, tokenised; the same on all ranks."""
        return self._prompts("prompts")

    @cached_property
    def eval_prompts(self) -> list[Prompt]:
        """Return the evaluation prompts: those given, else the first training prompts, else none."""
        if self.inputs.eval_prompts is not None:
            return self._prompts("eval_prompts")
        return self.prompts[: self.config.eval.num_prompts] if self.inputs.prompts is not None else []

    @cached_property
    def samples(self) -> list[Sample]:
        """Return the demonstrations, tokenised."""
        return self._samples("samples")

    @cached_property
    def sample_rewards(self) -> list[SampleReward]:
        """Return what each demonstration is worth, token by token; none where no rewards were given."""
        samples = self.samples if self.inputs.samples is not None else []
        return build_sample_rewards(self.inputs.rewards, samples) if self.inputs.rewards is not None else []

    @cached_property
    def eval_samples(self) -> list[Sample]:
        """Return the held-out demonstrations, tokenised; none where none were given."""
        return self._samples("eval_samples") if self.inputs.eval_samples is not None else []

    @cached_property
    def data(self) -> DataConfig:
        """Return the section `data`, with what only the policy can tell filled in."""
        given = self.config.data
        begins = self._built.outputs_begin_text if given.outputs_begin_text is None else given.outputs_begin_text
        return evolve(given, outputs_begin_text=begins)

    def _prompts(self, name: str) -> list[Prompt]:
        return self.read_prompts(getattr(self.inputs, name), name)

    def read_prompts(self, source: Any, what: str) -> list[Prompt]:
        """Tokenise prompts of any form for the policy; `what` is the option they were given in."""
        longest = self._built.max_prompt_length
        bound = longest + 1 if longest else 0
        return self.build_prompts(source, self.tokenizer, self.data, max_length=bound, what=what)

    def _samples(self, name: str) -> list[Sample]:
        source, longest = getattr(self.inputs, name), self._built.max_length
        return self.build_samples(source, self.tokenizer, self.data, max_length=longest, what=name)

    @cached_property
    def reward_fn(self) -> Rewards | None:
        """Return the reward functions as one, None where none were given."""
        return None if self.inputs.reward_fn is None else self.make_rewards()

    def plan_steps(self, steps_per_epoch: float) -> None:
        """Tell how many yields one pass over the data takes, so that `run.epochs` becomes a number of steps."""
        epochs, steps = self.config.run.epochs, self.config.run.steps
        if epochs is not None:
            by_epochs = max(1, math.ceil(epochs * steps_per_epoch - 1e-9))
            self.total_steps = by_epochs if steps is None else min(steps, by_epochs)

    def updater(self, policy: Policy, config: OptimizerConfig, *, updates_per_step: int = 1) -> Updater:
        """Return the optimizer of `policy`; `updates_per_step` scales its schedule to optimizer steps."""
        total = None if self.total_steps is None else self.total_steps * updates_per_step
        chosen = self.optimizers.get(config)
        return Updater(policy, config, self.ranks, total_updates=total, optimization=chosen)

    @timed("generate")
    def sample(
        self,
        prompts: Sequence[Prompt],
        sampling: SamplingConfig | None = None,
        *,
        generator: torch.Generator | None = None,
        on_batch: Callable[[list[int], Trajectories], None] | None = None,
    ) -> Trajectories:
        """Continue each prompt once with the policy as it is now; the result lies on this process's device."""
        options: dict[str, Any] = {} if self.logit_mask is None else {"logit_mask": self.logit_mask}
        if on_batch is not None:
            options["on_batch"] = on_batch
        batch = self.sampler(
            self._built, prompts, sampling or self.config.gen, generator=generator or self.generator, **options
        )
        count_tokens(batch.action_mask)
        note_sampled(batch.action_mask)
        return batch

    @cached_property
    def logit_mask(self) -> Tensor | None:
        """Return which token may come next, bool[V, V] on this process's device; None where any may."""
        given = self.inputs.logit_mask
        return None if given is None else to_device(load_logit_mask(given), self._built.device)

    @cached_property
    def metric_fn(self) -> Callable[..., Any] | None:
        """Return the function that turns completions into metrics, None where none was given."""
        given = self.inputs.metric_fn
        return load_reference(given, what="metric_fn") if isinstance(given, str) else given

    @cached_property
    def rollouts(self) -> Rollouts:
        """Return what training samples, on its way to the disk."""
        return Rollouts(self.config.run.rollouts, self.ranks, self.dir)

    def score(
        self,
        prompts: Sequence[Prompt],
        batch: Trajectories,
        *,
        stop_sequences: Sequence[str] | None = None,
        where: str = "",
    ) -> Scored:
        """Ask the reward functions about sampled continuations, and keep some in rollouts.jsonl (`run.rollouts`).

        Args:
            prompts: B prompts.
            batch: their continuations.
            stop_sequences: outputs are trimmed at these; those of `gen` if absent.
            where: what the batch is for, for messages; the step in progress if absent.

        Raises:
            RewardError: a reward function raised, or returned what cannot be used.
            DataError: a sequence without a chosen token.
        """
        scored = self._scorer(stop_sequences, where)(prompts, batch)
        self.rollouts.add(prompts, batch, scored)
        return scored

    def rollout(self, prompts: Sequence[Prompt]) -> tuple[Trajectories, Scored]:
        """Sample and score, as `sample` and `score` do; at the same time, where `run.overlap_rewards` says so."""
        batch, scored = collect(self.sample, self._scorer(), prompts, overlap=self._overlaps)
        self.rollouts.add(prompts, batch, scored)
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
        """Tell whether a sampler's log-probs can stand for the learner's: of the policy itself, in full precision.

        In a narrower precision two ways to compute the same number differ by more than ratios may.
        """
        narrow = self.config.model.get("sampling_dtype") is not None
        return self.config.gen.is_plain and self.logit_mask is None and self.is_full_precision and not narrow

    @property
    def is_full_precision(self) -> bool:
        """Tell whether forward passes run in float32 throughout."""
        weights = next(self._built.module.parameters())
        return self.ranks.mixed_precision == "no" and weights.dtype == torch.float32

    def add_evaluation(self, evaluation: Callable[[], Metrics]) -> None:
        """Have `evaluation` called at each evaluation; its metrics are logged under `eval/`."""
        self.evaluations.append(evaluation)

    @property
    def elapsed_s(self) -> float:
        """Return the seconds the run has taken, the time before it was resumed included."""
        return self.elapsed_before_s + time.monotonic() - self.started
