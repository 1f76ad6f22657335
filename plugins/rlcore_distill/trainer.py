"""The loop of distillation: rows of demonstrations, of the policy or the teacher; one optimizer step, one yield.

Also in this file: rows of a step: demonstrations, outputs of the policy and outputs of the teacher.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor

from rlcore import ops
from rlcore.config import evolve
from rlcore.errors import DataError
from rlcore.protocols import Policy
from rlcore.sampling import sample
from rlcore.training import Round, Run, disable_dropout, stack_samples, validate
from rlcore.types import Metrics, Prompt, Sample, State, Trajectories
from rlcore_distill.config import DistillConfig, PromptDistillConfig, check, workload
from rlcore_distill.loss import divergence, nll
from rlcore_distill.teachers import ModelTeacher, Teacher, build_teacher, check_tokens, needs_reference, table_size
from rlcore_transformers.data.mixtures import MixedStream
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


def _demonstrations(rows: Sequence[object], what: str) -> Sequence[object]:
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


class DistillTrainer:
    """Generalised knowledge distillation (`rlcore.protocols.Trainer`); equations in the package's docstring."""

    needs: ClassVar[tuple[str, ...]] = ("samples",)
    off_policy, scores_samples = True, True
    default_budget: ClassVar[Mapping[str, float]] = {"epochs": 1.0}
    headline = ("eval/loss/total", "loss/total", "distill/agreement")
    lowers = "loss/total"
    workload = staticmethod(workload)

    def __init__(self, config: DistillConfig, run: Run) -> None:
        check(config)
        self.config, self.run = config, run
        self.temperature = config.temperature or run.temperature
        self._policy = run.build(reference=needs_reference(config))
        disable_dropout(self._policy.module)
        self._policy.module.train()
        self.teacher: Teacher = build_teacher(config, run, self._policy, temperature=self.temperature)
        self.rows = self.make_rows(config, run)
        run.plan_steps(self.rows.num_batches())
        self.updater = run.updater(self._policy, config.optimizer)
        if run.data.eval_samples:
            run.add_evaluation(self.validation)

    def make_rows(self, config: Any, run: Run) -> Rows:
        """Return the source of rows: demonstrations, and the policy's outputs to their prompts."""
        return SampleRows(config, run)

    def steps(self) -> Iterator[Metrics]:
        """Yield after each optimizer step."""
        config = self.config
        while True:
            (batch, metrics), meter = self.rows.next(), self.updater.meter()
            count = self.updater.accumulate(
                batch, self.loss, meter, size=config.micro_batch_size, tokens=config.micro_batch_tokens
            )
            self.updater.step(meter)
            yield metrics | meter.means() | {
                "data/tokens": float(count), "lr": self.updater.lr, "progress/epoch": self.rows.order.epoch,
            }  # fmt: skip

    def loss(self, part: Trajectories) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss of each chosen token of a micro-batch, and its metrics."""
        config, mask = self.config, part.action_mask
        outputs = self._policy.score(part, logits=config.divergence != "nll", temperature=self.temperature)
        if config.divergence == "nll":
            losses = nll(outputs.logprobs)
            return losses, {"loss/total": losses}
        found = self.teacher.compare(part, outputs.need("logits"), temperature=self.temperature)
        each = divergence(found.logprobs, found.teacher_logprobs, kind=config.divergence, beta=config.beta)
        losses = ops.spread(each, mask)
        metrics = {"loss/total": losses, "distill/agreement": ops.spread(found.agrees.to(losses.dtype), mask)}
        if config.server.url:
            metrics["distill/teacher_mass"] = ops.spread(found.mass.to(losses.dtype), mask)
        return losses, metrics

    def policy(self) -> Policy:
        """Return the policy."""
        return self._policy

    @torch.no_grad()
    def validation(self) -> Metrics:
        """Return the means of loss and agreement over the tokens of held-out demonstrations, on all ranks together."""
        config, run = self.config, self.run
        return validate(
            self._policy, run.data.eval_samples, lambda part: self.loss(part)[1], run.ranks,
            batch_size=config.batch_size, size=config.micro_batch_size, tokens=config.micro_batch_tokens,
        )  # fmt: skip

    def state_dict(self) -> State:
        """Return the optimizer, the order of the rows, and how many have been taken."""
        return {
            "updater": self.updater.state_dict(),
            "order": self.rows.order.state_dict(),
            "num_rows": self.rows.shares.num_rows,
        }

    def load_state_dict(self, state: State) -> None:
        """Restore the state that `state_dict` returned."""
        self.updater.load_state_dict(state["updater"])
        self.rows.order.load_state_dict(state["order"])
        self.rows.shares.num_rows = state["num_rows"]


class PromptDistillTrainer(DistillTrainer):
    """Distillation on prompts alone: the policy, or the teacher, samples the outputs."""

    needs: ClassVar[tuple[str, ...]] = ("prompts",)
    scores_samples = False

    def make_rows(self, config: PromptDistillConfig, run: Run) -> Rows:
        """Return the source of rows: outputs of the policy and of the teacher."""
        return PromptRows(config, run, self.teacher.model if isinstance(self.teacher, ModelTeacher) else None)
