"""The policy, components and data lengths of the planned run, built on fake tensors.

Also in this file: the batches of the planned run: of its samples, or of prompts and rollouts of the maximum length; a
policy wrapper that measures the memory of decoders and sets the capacity of their caches; the memory of sampling: a
few tokens are sampled on fake tensors, with caches of their full length.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from typing import Any

import attrs
import torch
from transformers import PretrainedConfig, PreTrainedModel

from rlcore.components import LANGUAGE_MODEL, SCORER
from rlcore.config import ConfigOnly, evolve
from rlcore.errors import ConfigError, InputsError, ModelError
from rlcore.optim.optimization import Optimizers, sections
from rlcore.plugins.choice import Chooser, Wrapping
from rlcore.protocols import ArchitectureTraits, Decoder, DecodeStep, Policy, TrainerTraits
from rlcore.protocols.learners import joins
from rlcore.ranks import Ranks
from rlcore.sampling import sample, takes_waiting
from rlcore.settings import OptimizerConfig, SamplingConfig, TrainConfig
from rlcore.training import Order, disable_dropout, micro_batches, stack_samples
from rlcore.training.evaluate import eval_samplings
from rlcore.training.inputs import DATA_INPUTS, Inputs
from rlcore.training.run_components import Chosen, check_declared, choose
from rlcore.types import Prompt, Trajectories
from rlcore_tools.plan.fake_tensors import LiveBytes, held
from rlcore_tools.plan.reward_models import PlannedReward, build_reward_models
from rlcore_tools.plan.serving import Serving, serving_of
from rlcore_tools.plan.workload import (
    Lengths,
    Rehearsal,
    Workload,
    declared,
    find_lengths,
    find_tokenizer,
    stand_in,
    workload_of,
)
from rlcore_transformers.models.freezing import vocabulary_size
from rlcore_transformers.models.hub import check_reach
from rlcore_transformers.models.input_layout import declared as declared_kind
from rlcore_transformers.models.peft.inject import unwrap
from rlcore_transformers.models.tokenizers import load_tokenizer


@attrs.frozen(eq=False)
class PlannedRun:
    """The run whose memory is estimated.

    Attributes:
        settings: the configuration.
        chosen: the components that the configuration names.
        workload: batch sizes and model heads that the trainer uses.
        optimizer: the section of the configuration that names the optimizer.
        optimizers: looks up the optimizer and its schedule.
        policy: the policy, or the scorer of a run that trains one; its weights are fake tensors.
        ranks: this process, as one of `world`.
        world: number of processes of the run.
        tokenizer: the run's tokenizer; None if it would have to be downloaded.
        lengths: the lengths of prompts and samples.
        rewards: the reward models that score responses.
        notes: the assumptions of the estimate.
        rehearsal: the parts of a step of a model that is no language model; None for a language model.
        serving: where a sampler samples that does not run the policy in these processes; None if it does.
    """

    settings: TrainConfig
    chosen: Chosen
    workload: Workload
    optimizer: OptimizerConfig
    optimizers: Optimizers
    policy: Any
    ranks: Ranks
    world: int
    tokenizer: Any
    lengths: Lengths
    rewards: tuple[PlannedReward, ...]
    notes: tuple[str, ...]
    rehearsal: Rehearsal | None = None
    serving: Serving | None = None

    def share(self, count: int) -> int:
        """Return the largest number of sequences that one rank gets of `count`."""
        return -(-count // self.world)


def read_inputs(settings: TrainConfig) -> Inputs:
    """Return the model, data and reward functions that the configuration names; no data is read."""
    named = {name: getattr(settings.data, name) for name in DATA_INPUTS}
    return Inputs(model=settings.model.get("path"), tokenizer=settings.model.get("tokenizer"), **named)


def build_subject(
    settings: TrainConfig, inputs: Inputs, where: str, world: int, known: PlannedRun | None = None
) -> PlannedRun:
    """Build the planned run; called inside `fake_tensors`.

    Args:
        settings: the configuration.
        inputs: the model, prompts and samples that it names.
        where: name of the configuration, for errors.
        world: number of processes of the run.
        known: the planned run of a configuration with the same data options; its tokenizer and lengths are reused, and
            its policy if the model options are equal.

    Raises:
        RLCoreError: the configuration names a component or file that does not exist, or lacks an input of the trainer.
    """
    chosen = choose(settings, inputs, where, Wrapping(config=settings))
    component, options = chosen.trainer.component, chosen.trainer.options
    trainer: Any = component.target()
    check_declared(component, trainer)
    if settings.gen.beta is None:
        settings = evolve(settings, gen=evolve(settings.gen, beta=TrainerTraits(trainer).default_beta))
    is_text = _is_text(chosen, trainer)
    inputs = attrs.evolve(inputs, model=_described(unwrap(inputs.model), settings.model.get("revision"), is_text))
    inputs.require(component.name, trainer.needs)
    rewards = chosen.rewards
    if ArchitectureTraits(chosen.architecture.component.target()).kind == SCORER:  # it generates no text
        inputs, rewards = attrs.evolve(inputs, prompts=None, eval_prompts=None), ()
    optimizers = Optimizers(options, Chooser(where, Wrapping()))
    workload, notes = workload_of(trainer, options, str(component), 0)
    if known is not None:
        tokenizer = known.tokenizer
    else:
        read = ArchitectureTraits(chosen.architecture.component.target()).read_tokenizer or load_tokenizer
        tokenizer = find_tokenizer(inputs, chosen.architecture.options, read) if is_text else None
    if known is not None and _is_policy_of(known, settings, workload):
        policy, ranks = known.policy, known.ranks
    else:
        policy, ranks = _build_policy(inputs, chosen, workload, tokenizer), _ranks(settings)
    rehearsal = None
    if not is_text:
        found = trainer.rehearse(policy, options, settings, world)
        rehearsal = declared(Rehearsal, found, f"{component}: rehearse")
        lengths = Lengths(notes=rehearsal.notes)
    else:
        bounds = {"max_prompt": getattr(policy, "max_prompt_length", 0), "max_length": policy.max_length}
        lengths = known.lengths if known else find_lengths(settings, inputs, chosen, tokenizer, workload, **bounds)
    workload, _ = workload_of(trainer, options, str(component), lengths.num_prompts)
    policy.module.train()
    optimized = [config for _, config in sections(options, "trainer")]
    if len(optimized) != 1:
        counted = "the first" if optimized else "adamw"
        notes += (f"{component} has {len(optimized)} optimizers: the estimate counts {counted} only",)
    serving, assumed = serving_of(chosen.sampler)
    notes += assumed if workload.num_sampled else ()
    return PlannedRun(
        settings=settings, chosen=chosen, workload=workload, optimizer=optimized[0] if optimized else OptimizerConfig(),
        optimizers=optimizers, policy=policy, ranks=ranks, world=world, tokenizer=tokenizer, lengths=lengths,
        rewards=known.rewards if known else build_reward_models(rewards, ranks.device),
        notes=(*notes, *lengths.notes), rehearsal=rehearsal, serving=serving,
    )  # fmt: skip


def _is_policy_of(known: PlannedRun, settings: TrainConfig, workload: Workload) -> bool:
    """Return whether a configuration builds the same policy as the known run."""
    ours, theirs = ((each.value_head, each.reference, each.heads, each.dropout) for each in (workload, known.workload))
    precisions = (settings.run.mixed_precision, known.settings.run.mixed_precision)
    return (ours, settings.model) == (theirs, known.settings.model) and precisions[0] == precisions[1]


def _described(model: object, revision: object, is_text: bool) -> Any:
    """Return the model as a `ConfigOnly` name or a configuration, so that no weights are downloaded or read.

    Raises:
        InputsError: no model is named.
        ModelError: the model's configuration cannot be read.
    """
    if model is None:
        raise InputsError("model.path is missing: name a hub id, a folder or a GGUF file")
    if not is_text:
        if not isinstance(model, (str, os.PathLike)):
            raise ModelError(f"model = {model!r:.80}: give a hub id or a folder")
        return ConfigOnly(os.fspath(model))  # its architecture checks it
    if not isinstance(model, (str, os.PathLike, PretrainedConfig, PreTrainedModel)):
        raise ModelError(f"model = {model!r:.80}: give a hub id, a folder, a PretrainedConfig or a PreTrainedModel")
    if isinstance(model, PreTrainedModel):
        return model.config
    if isinstance(model, PretrainedConfig):
        return model
    revision = revision if isinstance(revision, str) else None
    check_reach(model, revision)
    if declared_kind(model, revision) is None:
        raise ModelError(
            f"model = {os.fspath(model)!r}: its configuration cannot be read: there is no such folder with a "
            "config.json, and the hub has no such model"
        )
    return ConfigOnly(os.fspath(model))


def _is_text(chosen: Chosen, trainer: object) -> bool:
    """Return whether the run trains a model of text; otherwise its trainer declares a `Rehearsal`.

    Raises:
        ModelError: it trains another model, and the trainer has no `rehearse`.
    """
    component = chosen.architecture.component
    kind = ArchitectureTraits(component.target()).kind
    if kind not in (LANGUAGE_MODEL, SCORER) and TrainerTraits(trainer).rehearse is None:
        raise ModelError(
            f"model.architecture = '{component.name}': this run trains {kind}, and {chosen.trainer.component} declares "
            "no `rehearse` that rlcore plan could measure; measure its memory instead: run.steps=1 and the metric "
            "perf/peak_memory_gb"
        )
    return kind in (LANGUAGE_MODEL, SCORER)


def _build_policy(inputs: Inputs, chosen: Chosen, workload: Workload, tokenizer: Any) -> object:
    build: Any = chosen.architecture.component.target()
    heads: dict[str, Any] = {
        "value_head": workload.value_head,
        "reference": workload.reference,
        **({"heads": workload.heads} if workload.heads else {}),
    }
    if ArchitectureTraits(build).kind != LANGUAGE_MODEL:
        heads = {}
    options = chosen.architecture.options
    if isinstance(getattr(options, "critic", None), str):
        options = evolve(options, critic=ConfigOnly(options.critic))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Accessing the data pointer of FakeTensor")
        policy: Any = build(inputs.model, options, tokenizer=tokenizer or stand_in(2), **heads)
    if not workload.dropout:
        disable_dropout(policy.module)
    return chosen.architecture.wrap(policy)


def _ranks(settings: TrainConfig) -> Ranks:
    """Return this process's ranks; bf16 replaces fp16 on a machine without it, since both take two bytes."""
    precision = settings.run.mixed_precision
    try:
        ranks = Ranks(precision)
    except ConfigError:
        if precision != "fp16":
            raise
        ranks = Ranks("bf16")
    ranks.accelerator.device_placement = False  # fake tensors cannot be moved
    return ranks


def vocabulary_of(policy: object) -> int:
    """Return the size of the policy's vocabulary; 2 if it is unknown."""
    model = getattr(policy, "model", None)
    return vocabulary_size(model) if isinstance(model, PreTrainedModel) else 2


def pieces(subject: PlannedRun, batch: Trajectories, size: int) -> list[Trajectories]:
    """Cut a batch into micro-batches as the run does."""
    workload = subject.workload
    bound, group = workload.micro_batch_tokens, workload.group
    return [piece for piece, _ in micro_batches(batch, size, subject.ranks, tokens=bound, group=group)]


def learned(subject: PlannedRun) -> Trajectories:
    """Return one rank's batch of an optimizer step: rollouts of the maximum length, or samples."""
    group, size = subject.workload.group, subject.workload.batch_size
    if subject.workload.num_sampled:
        return rollouts(subject, subject.share(size // group) * group)
    samples = subject.lengths.samples
    count = len(samples) // group
    order, batches = Order(count, subject.settings.run.seed), []
    while order.position < count:
        indices = order.take_within_pass(max(size // group, 1))[:: subject.world]
        batches.append([sample for i in indices for sample in samples[i * group : (i + 1) * group]])
    return stack_samples(max(batches, key=lambda batch: sum(len(each.tokens) for each in batch)))


def rollouts(subject: PlannedRun, size: int) -> Trajectories:
    """Return different sequences of the maximum length, with as many distinct prompts as the run has."""
    new, base = subject.settings.gen.max_new_tokens, max(vocabulary_of(subject.policy), 2)
    responses = torch.randint(base, (size, new), generator=torch.Generator().manual_seed(0)).tolist()
    made = prompts(subject, size, subject.lengths.prompt, subject.lengths.num_prompts)
    tokens = [[*prompt.tokens, *response] for prompt, response in zip(made, responses, strict=True)]
    return Trajectories.stack(tokens, [[False] * len(prompt.tokens) + [True] * new for prompt in made])


def checked(subject: PlannedRun, rows: int, new: int) -> Trajectories:
    """Return continuations of `new` tokens of prompts of the maximum length."""
    made = prompts(subject, rows, subject.lengths.prompt + new)
    masks = [[i >= len(each.tokens) - new for i in range(len(each.tokens))] for each in made]
    return Trajectories.stack([list(each.tokens) for each in made], masks)


def prompts(subject: PlannedRun, size: int, length: int, different: int = 0) -> list[Prompt]:
    """Return `size` prompts of one length, of which `different` are distinct; all are if it is 0."""
    base, made = max(vocabulary_of(subject.policy), 2), []
    for i in range(size):
        number, tokens = i % (different or size), [0] * max(length, 1)
        for place in range(len(tokens)):
            number, tokens[place] = divmod(number, base)
        made.append(Prompt("", tuple(tokens)))
    return made


class MeasuredPolicy:
    """A policy that measures the memory of its decoders.

    Args:
        policy: the wrapped policy.
        live: counts the bytes of tensors.
        before: bytes held without a decoder.
        waiting: number of prompts that join once a sequence is finished; the policy chooses its decoder by this number.
        capacity: new tokens for which caches have room; 0 for the number that is sampled.
        is_late: whether the peak is counted only from the second token on.

    Attributes:
        cache: largest number of bytes that a decoder held besides its outputs.
        logits: bytes of its logits.
        joins: whether its decoder accepts waiting prompts.
    """

    def __init__(
        self,
        policy: Policy,
        live: LiveBytes,
        before: int,
        *,
        waiting: int,
        capacity: int = 0,
        is_late: bool = False,
    ) -> None:
        self._policy, self._live, self._before, self._capacity = policy, live, before, capacity
        self._is_late, self.cache, self.logits, self.joins = is_late, 0, 0, False
        self._options: dict[str, Any] = {"waiting": waiting} if takes_waiting(policy) else {}

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the wrapped policy."""
        return getattr(self._policy, name)

    def decoder(self, prompts: Sequence[Sequence[int]], *, max_new_tokens: int, **options: Any) -> Decoder:
        """Return the policy's decoder, with room for `capacity` new tokens, and measure it."""
        room = self._capacity or max_new_tokens
        return _Decoder(self, self._policy.decoder(prompts, max_new_tokens=room, **options, **self._options))

    def note(self, outputs: DecodeStep) -> None:
        """Record the bytes that a decoder holds besides its outputs."""
        self.logits = outputs.logits.shape[0] * outputs.logits.shape[1] * 4
        own = held(outputs.logits, outputs.values, outputs.advantages)
        self.cache = max(self.cache, self._live.now - own - self._before)
        if self._is_late:
            self._live.restart()


class _Decoder:
    def __init__(self, policy: MeasuredPolicy, decoder: Decoder) -> None:
        self._policy, self._decoder, self._started = policy, decoder, False

    def start(self) -> DecodeStep:
        outputs = self._decoder.start()
        self._policy.joins = joins(self._decoder) is not None
        return outputs

    def step(self, tokens: torch.Tensor) -> DecodeStep:
        outputs = self._decoder.step(tokens)
        if not self._started:
            self._started = True
            self._policy.note(outputs)
        return outputs

    def keep(self, rows: torch.Tensor) -> None:
        self._decoder.keep(rows)


NUM_EARLY, NUM_LATE = 2, 3
"""Tokens sampled at the start and at the end: a decoder's first step allocates its cache, the next one reuses it."""

UNSEEN = ("gradient_checkpointing", "trunk_cache_gb", "unfrozen_layers")
"""Model options that do not affect the memory of sampling, which needs no gradients."""


@attrs.frozen
class Draw:
    """The memory of one round of sampling, beyond the memory held before the first.

    Attributes:
        name: name of the phase.
        size: number of sequences sampled at once.
        parts: bytes by purpose.
        peak: largest number of bytes of tensors.
        holes: further bytes that malloc keeps of freed tensors.
    """

    name: str
    size: int
    parts: dict[str, int]
    peak: int
    holes: int


@attrs.frozen
class Draws:
    """The memory of sampling in training and in evaluations; `kept` bytes stay allocated in between."""

    phases: tuple[Draw, ...]
    kept: int

    @property
    def at_once(self) -> dict[str, int]:
        """Return the number of sequences sampled at once, by phase."""
        return {each.name: each.size for each in self.phases}


def is_drawn_alike(one: PlannedRun, other: PlannedRun) -> bool:
    """Return whether two runs with the same prompts take the same memory for sampling."""
    (first, work), (second, task) = ((each.settings, each.workload) for each in (one, other))
    models = [{name: value for name, value in each.model.items() if name not in UNSEEN} for each in (first, second)]
    return models[0] == models[1] and (
        (first.gen, first.eval, first.run, work.num_sampled, work.value_head, work.heads)
        == (second.gen, second.eval, second.run, task.num_sampled, task.value_head, task.heads)
    )


def draw(subject: PlannedRun, live: LiveBytes) -> Draws:
    """Measure sampling as in training and as in evaluations; called inside `fake_tensors`."""
    settings, phases, began = subject.settings, [], live.now
    if subject.workload.num_sampled:
        size = subject.share(subject.workload.num_sampled)
        phases.append(_measured(subject, live, "sampling", settings.gen, size, subject.lengths.prompt, began))
    if subject.lengths.eval_prompt:
        samplings = [sampling for _, sampling in eval_samplings(settings.gen, settings.eval.gen)]
        longest = max(samplings, key=lambda sampling: sampling.max_new_tokens)
        known = subject.lengths.num_eval_prompts * settings.eval.samples
        size = subject.share(min(settings.eval.batch_size, known or settings.eval.batch_size))
        phases.append(_measured(subject, live, "evaluation", longest, size, subject.lengths.eval_prompt, began))
    return Draws(tuple(phases), live.now - began)


def _measured(
    subject: PlannedRun, live: LiveBytes, name: str, gen: SamplingConfig, num_prompts: int, length: int, began: int
) -> Draw:
    """Sample the first tokens with a cache for the whole length, then the last tokens, and measure both."""
    size = min(num_prompts, gen.batch_size or num_prompts)
    first, last = (min(number, gen.max_new_tokens) for number in (NUM_EARLY, NUM_LATE))
    few = evolve(gen, max_new_tokens=first, min_new_tokens=0, eos_token_ids=(), stop_sequences=())
    before, waiting = live.restart(), num_prompts - size
    early = MeasuredPolicy(subject.policy, live, before, waiting=waiting, capacity=gen.max_new_tokens)
    sample(early, prompts(subject, size, length, subject.lengths.num_prompts), few)
    peak, taken = live.peak, live.peak + live.holes
    late = MeasuredPolicy(subject.policy, live, before, waiting=waiting if early.joins else 0, is_late=True)
    with live.unreplayed():  # real prompts are shorter
        sample(late, prompts(subject, size, length + gen.max_new_tokens - last), evolve(few, max_new_tokens=last))
    peak = max(peak, live.peak)
    kept = live.now - before  # such as a copy of the weights; it has a line of its own in the bytes held throughout
    cache = max(max(early.cache, late.cache) - kept, 0)
    parts = {"key-value cache": cache, "logits": early.logits, "the rest": peak - before - kept - cache - early.logits}
    return Draw(name, size, parts, peak - began, max(0, taken - peak))
