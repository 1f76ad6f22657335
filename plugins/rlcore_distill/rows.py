"""Rows of a step: demonstrations, outputs of the policy and outputs of the teacher."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

from rlcore.config import evolve
from rlcore.errors import DataError
from rlcore.protocols import Policy
from rlcore.sampling import sample
from rlcore.training import Round, Run, stack_samples
from rlcore.types import Metrics, Prompt, Sample, Trajectories
from rlcore_distill.config import DistillConfig, PromptDistillConfig
from rlcore_distill.teachers import check_tokens, table_size
from rlcore_transformers.data.mixed_streams import MixedStream
from rlcore_transformers.data.pipelines import read_as_prompts, rows_as_prompts
from rlcore_transformers.data.streams import SampleStream


class Rows(Protocol):
    """Gives a trainer the rows of its steps."""

    order: Any
    shares: Shares

    def next(self) -> tuple[Round, Metrics]:
        """Return the rows of the next step, and the metrics of sampling."""
        ...

    def num_batches(self) -> int | None:
        """Return the number of steps of a pass; None for a stream."""
        ...


class Shares:
    """Divides the rows of each step into those of the policy and the others, so that their share is exact over time.

    Of the first n rows of a run, floor(on_policy n) are the policy's.

    Args:
        on_policy: the share, in [0, 1].
    """

    def __init__(self, on_policy: float) -> None:
        self.on_policy, self.num_rows = on_policy, 0

    def take(self, count: int) -> int:
        """Return how many of the next `count` rows are the policy's."""
        before = self._num_own()
        self.num_rows += count
        return self._num_own() - before

    def _num_own(self) -> int:
        return int(self.on_policy * self.num_rows + 1e-9)


class SampleRows:
    """Demonstrations, some of which are replaced by the policy's outputs to their prompts.

    The prompt of a demonstration is what precedes its first chosen token; of a text without a prompt, its first token.

    Args:
        config: the options.
        run: the run, which has built its policy.
    """

    def __init__(self, config: DistillConfig, run: Run) -> None:
        self.config, self.run, self.shares = config, run, Shares(config.on_policy)
        self.samples, self.order = run.data.ordered_samples(_demonstrations)
        self._columns = None if run.data.reward_fn is None else _columns(run, self.samples)

    def num_batches(self) -> int | None:
        """Return the number of steps of a pass over the demonstrations; None for a stream."""
        count: int | None = self.order.num_batches(self.config.batch_size)
        return count

    def next(self) -> tuple[Round, Metrics]:
        """Return the rows of the next step: first the policy's, then demonstrations."""
        indices = self.order.take_within_pass(self.config.batch_size)
        taken = [self.samples[i] for i in indices]
        own = self.shares.take(len(taken))
        prompts = [prompt_of(each, self.run.learner.tokenizer) for each in taken[:own]]
        if self._columns is not None:
            rows = self._columns(indices)[:own]
            prompts = [evolve(row, text=each.text, tokens=each.tokens) for row, each in zip(rows, prompts, strict=True)]
        given = [self.run.deal(stack_samples(taken[own:]).to(self.run.ranks.device))] if taken[own:] else []
        return _together(self.run, prompts, given)


class PromptRows:
    """Outputs of the policy and of the teacher to prompts.

    Args:
        config: the options.
        run: the run, which has built its policy.
        teacher: the teacher's model; None if it samples nothing, which `check` allows with a share of 1 only.
    """

    def __init__(self, config: PromptDistillConfig, run: Run, teacher: Policy | None) -> None:
        self.config, self.run, self.teacher, self.shares = config, run, teacher, Shares(config.on_policy)
        self.order = run.data.order(run.prompts)
        self._vocabulary = table_size(run.models.policy)  # before its weights are divided among processes

    def num_batches(self) -> int | None:
        """Return the number of steps of a pass over the prompts."""
        return self.order.num_batches(self.config.batch_size)

    def next(self) -> tuple[Round, Metrics]:
        """Return the rows of the next step: first the policy's, then the teacher's."""
        taken = [self.run.prompts[i] for i in self.order.take_within_pass(self.config.batch_size)]
        own = self.shares.take(len(taken))
        given = list[Round]()
        if taken[own:] and self.teacher is not None:
            given = [sample_teacher(self.run, self.teacher, taken[own:], self.config)]
            check_tokens(given[0].own, self._vocabulary, "the policy")
        return _together(self.run, taken[:own], given)


def _demonstrations(rows: Sequence[Any], what: str) -> Sequence[Any]:
    for row in rows:
        if not isinstance(row, Sample):
            raise DataError(
                f"{what}: the pipeline returned {type(row).__name__} objects; distillation learns from "
                "demonstrations: leave data.sample_pipeline out"
            )
    return rows


def _columns(run: Run, samples: Any) -> Callable[[Sequence[int]], list[Prompt]] | None:
    """Return what finds demonstrations as prompts, whose columns reward functions receive; None if they are unknown.

    Those of rows that can be read once only, and of rows that give several samples, are unknown.
    """
    given, data = run.data.inputs.samples, run.data.options
    if isinstance(samples, SampleStream | MixedStream):
        return lambda indices: rows_as_prompts(list(map(samples.before_tokenising, indices)), data, what="samples")
    if run.data.sample_stream is None and not isinstance(given, Iterator):
        rows = read_as_prompts(given, data, what="samples")
        if len(rows) == len(samples):
            return lambda indices: [rows[i] for i in indices]
    run.warn_once(
        "distill", "reward functions receive no columns of samples: they are an iterator, or a stream of another "
        "pipeline, or a row gives several samples",
    )  # fmt: skip
    return None


def prompt_of(row: Sample, tokenizer: Any) -> Prompt:
    """Return the prompt of a demonstration: its tokens before the first chosen one."""
    tokens = row.tokens[: row.action_mask.index(True)]
    (text,) = tokenizer.decode([list(tokens)], skip_special_tokens=True, clean_up_tokenization_spaces=False)
    return Prompt(text, tokens)


def sample_policy(run: Run, prompts: Sequence[Prompt]) -> tuple[Round, Metrics]:
    """Let the policy continue each prompt; with reward functions the outputs are scored, for the metrics alone."""
    batch = run.rollout(prompts, at_least=0)
    run.observers.on_rollout(run, batch.own)
    metrics = batch.metrics
    if run.data.reward_fn is None:
        metrics = {name: value for name, value in metrics.items() if not name.startswith("reward/")}
    return batch.with_only(), metrics


def sample_teacher(run: Run, teacher: Policy, prompts: Sequence[Prompt], config: PromptDistillConfig) -> Round:
    """Let the teacher continue each prompt with the registered sampler."""
    mine = run.sampling.dealt(prompts)
    gen = evolve(run.config.gen, temperature=config.teacher_temperature, beta=0.0)
    seeds = run.sampling.row_seeds(len(mine))
    batch = sample(teacher, mine, gen, row_seeds=seeds) if mine else Trajectories.stack([], [])
    return run.round(batch.with_only())


def _together(run: Run, prompts: Sequence[Prompt], given: Sequence[Round]) -> tuple[Round, Metrics]:
    """Return the policy's outputs to prompts and given rows as one batch, and its metrics."""
    metrics: Metrics = {}
    parts = list(given)
    if prompts:
        own, metrics = sample_policy(run, prompts)
        parts.insert(0, own)
    batch = Round.join(parts)
    return batch, metrics | {"data/on_policy_fraction": len(prompts) / len(batch)}
