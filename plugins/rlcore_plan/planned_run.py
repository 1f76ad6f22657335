"""The policy, components and data lengths of the planned run, built on fake tensors."""

from __future__ import annotations

import os
import warnings
from typing import Any

import attrs
from transformers import PretrainedConfig, PreTrainedModel

from rlcore.components import LANGUAGE_MODEL, SCORER, kind_built
from rlcore.config import ConfigOnly, evolve
from rlcore.errors import ConfigError, InputsError, ModelError
from rlcore.optim.optimization import Optimizers, sections
from rlcore.plugins.choice import Chooser
from rlcore.plugins.wrappers import Wrapping
from rlcore.ranks import Ranks
from rlcore.settings import OptimizerConfig, TrainConfig
from rlcore.training import disable_dropout
from rlcore.training.check_trainer import check_declared
from rlcore.training.inputs import DATA_INPUTS, Inputs
from rlcore.training.run_components import Chosen, choose
from rlcore_plan.lengths import Lengths, find_lengths, find_tokenizer, stand_in
from rlcore_plan.planned_workload import workload_of
from rlcore_plan.reward_models import PlannedReward, build_reward_models
from rlcore_plan.serving import Serving, serving_of
from rlcore_plan.workload import Rehearsal, Workload, declared
from rlcore_transformers.models.freezing import vocabulary_size
from rlcore_transformers.models.hub import check_reach
from rlcore_transformers.models.kind import declared as declared_kind
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
        settings = evolve(settings, gen=evolve(settings.gen, beta=getattr(trainer, "default_beta", 0.0)))
    is_text = _is_text(chosen, trainer)
    inputs = attrs.evolve(inputs, model=_described(unwrap(inputs.model), settings.model.get("revision"), is_text))
    inputs.require(component.name, trainer.needs)
    rewards = chosen.rewards
    if kind_built(chosen.architecture.component.target()) == SCORER:  # it generates no text
        inputs, rewards = attrs.evolve(inputs, prompts=None, eval_prompts=None), ()
    optimizers = Optimizers(options, Chooser(where, Wrapping()))
    workload, notes = workload_of(trainer, options, str(component), 0)
    if known is not None:
        tokenizer = known.tokenizer
    else:
        read = getattr(chosen.architecture.component.target(), "read_tokenizer", load_tokenizer)
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


def _described(model: Any, revision: Any, is_text: bool) -> Any:
    """Return the model as a `ConfigOnly` name or a configuration, so that no weights are downloaded or read.

    Raises:
        InputsError: no model is named.
        ModelError: the model's configuration cannot be read.
    """
    if model is None:
        raise InputsError("model.path is missing: name a hub id or a folder")
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


def _is_text(chosen: Chosen, trainer: Any) -> bool:
    """Return whether the run trains a model of text; otherwise its trainer declares a `Rehearsal`.

    Raises:
        ModelError: it trains another model, and the trainer has no `rehearse`.
    """
    component = chosen.architecture.component
    kind = kind_built(component.target())
    if kind not in (LANGUAGE_MODEL, SCORER) and getattr(trainer, "rehearse", None) is None:
        raise ModelError(
            f"model.architecture = '{component.name}': this run trains {kind}, and {chosen.trainer.component} declares "
            "no `rehearse` that rlcore plan could measure; measure its memory instead: run.steps=1 and the metric "
            "perf/peak_memory_gb"
        )
    return kind in (LANGUAGE_MODEL, SCORER)


def _build_policy(inputs: Inputs, chosen: Chosen, workload: Workload, tokenizer: Any) -> Any:
    """Return the policy, or the scorer."""
    build: Any = chosen.architecture.component.target()
    heads: dict[str, Any] = {
        "value_head": workload.value_head,
        "reference": workload.reference,
        **({"heads": workload.heads} if workload.heads else {}),
    }
    if kind_built(build) != LANGUAGE_MODEL:
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


def vocabulary_of(policy: Any) -> int:
    """Return the size of the policy's vocabulary; 2 if it is unknown."""
    model = getattr(policy, "model", None)
    return vocabulary_size(model) if isinstance(model, PreTrainedModel) else 2
