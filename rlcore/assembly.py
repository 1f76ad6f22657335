"""Put a run together: resolve names, check what was given, make the folder, build the trainer, restore."""

from __future__ import annotations

import random
from collections.abc import Mapping
from typing import Any

import attrs
import numpy as np
import torch
from transformers import PretrainedConfig, PreTrainedModel

from rlcore.claiming import Claim, claim
from rlcore.components import Component
from rlcore.config import evolve, structure, unstructure
from rlcore.errors import ConfigError, InputsError
from rlcore.evaluation import check_evaluation
from rlcore.inputs import DATA_INPUTS, Inputs
from rlcore.loggers import Loggers
from rlcore.models.loading import load_tokenizer, quiet_transformers
from rlcore.observers import Observers
from rlcore.protocols import Trainer
from rlcore.ranks import Ranks
from rlcore.recording import spell
from rlcore.registry import registries
from rlcore.run import Run
from rlcore.rundir import RunDir
from rlcore.saving import Saver, save_beside
from rlcore.settings import TrainConfig

MODEL_KEYS = ("path", "architecture", "tokenizer")


@attrs.frozen(eq=False)
class Assembly:
    """Hold the parts of a run that is ready to go."""

    trainer: Trainer
    run: Run
    saver: Saver


def assemble(settings: TrainConfig, inputs: Inputs, where: str) -> Assembly:
    """Build a run from checked settings and the user's inputs.

    Nothing is written before every name and option has been resolved.

    Raises:
        RLCoreError: a name, option or input that cannot be used; the run folder is in use; a checkpoint is damaged.
    """
    trainer_component = registries().trainers.get(settings.trainer.get("name") or inputs.fitting_trainer())
    trainer_config = _options(trainer_component, settings.trainer, ("name",), where, "trainer")
    architecture = registries().architectures.get(settings.model.get("architecture") or "causal_lm")
    model_config = _options(architecture, settings.model, MODEL_KEYS, where, "model")
    logger_parts = [_logger(entry, where, i) for i, entry in enumerate(_with_files(settings.loggers))]
    sampler = registries().samplers.get(settings.sampler)
    store = registries().rollout_stores.get(settings.store)
    prompts = registries().pipelines.get(settings.data.prompt_pipeline)
    samples = registries().pipelines.get(settings.data.sample_pipeline)
    trainer_type: Any = trainer_component.target()
    if inputs.model is None:
        raise InputsError("no model: pass a hub id, folder, PretrainedConfig or module (model.path in a file)")
    inputs.require(trainer_component.name, trainer_type.needs)
    settings = _with_budget(settings, trainer_type.default_budget)

    ranks = Ranks(settings.run.mixed_precision)
    used: list[Component[Any]] = [trainer_component, architecture, sampler, store, prompts, samples]
    used += [component for component, _ in logger_parts]
    plugins = {component.dist: component.version for component in used}
    resolved = _resolve(
        settings,
        inputs,
        {"name": settings.trainer.get("name") or trainer_component.name, **(unstructure(trainer_config) or {})},
        {"architecture": architecture.name, **(unstructure(model_config) or {})},
    )
    with claim(resolved, ranks, plugins, trainer_component.name) as place:
        seed_everything(settings.run.seed)
        spec = _starting_point(inputs.model, place)
        tokenizer = load_tokenizer(inputs.model, inputs.tokenizer)

        def make_policy(**wanted: bool) -> Any:
            policy = architecture.target()(spec, model_config, tokenizer=tokenizer, **wanted)
            if wanted.get("reference") and isinstance(inputs.model, (PretrainedConfig, PreTrainedModel)):
                _keep_start(policy, place, ranks)
            return policy

        run = Run(
            config=resolved, dir=place.path, ranks=ranks, inputs=inputs, tokenizer=tokenizer, observers=Observers(),
            loggers=Loggers(), sampler=sampler.target(),
            build_prompts=prompts.target(), build_samples=samples.target(), make_store=store.target(), make_policy=make_policy,
            total_steps=settings.run.steps,
        )  # fmt: skip
        trainer: Trainer = trainer_type(trainer_config, run)
        if settings.run.epochs is not None and run.total_steps is None:
            raise ConfigError(f"run.epochs: trainer '{trainer_component.name}' does not count epochs; set run.steps")
        check_evaluation(run)
        saver = Saver(run, plugins)
        if place.checkpoint is not None:
            saver.restore(trainer, place.checkpoint)
    if ranks.is_main:
        RunDir(place.path).rewind(run.step if place.checkpoint is not None else None)
        run.loggers.extend(component.target()(options, run) for component, options in logger_parts)
    return Assembly(trainer, run, saver)


def seed_everything(seed: int) -> None:
    """Seed the generators of Python, numpy and torch."""
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)


def _options(
    component: Component[Any], section: Mapping[str, Any], skip: tuple[str, ...], where: str, path: str
) -> Any:
    """Structure a component's options, which are a section's keys but for those the core reads itself."""
    values = {name: value for name, value in section.items() if name not in skip}
    cls = component.config_class()
    if cls is not None:
        return structure(cls, values, where=where, path=path)
    if values:
        raise ConfigError(f"{where}: {path}.{next(iter(values))}: '{component.name}' has no options")
    return None


def _with_files(entries: tuple[Any, ...]) -> list[Any]:
    """Put the logger that writes metrics and completions to disk first, whatever else was asked for."""
    return ["jsonl", *(entry for entry in entries if entry not in ("jsonl", "rlcore:jsonl"))]


def _logger(entry: Any, where: str, number: int) -> tuple[Component[Any], Any]:
    section = dict(entry) if isinstance(entry, Mapping) else {"name": entry}
    component = registries().loggers.get(str(section.get("name")))
    return component, _options(component, section, ("name",), where, f"loggers[{number}]")


def _with_budget(settings: TrainConfig, default: Mapping[str, Any]) -> TrainConfig:
    run = settings.run
    if run.steps is None and run.epochs is None and run.time_s is None:
        return evolve(settings, run=evolve(run, **default))
    return settings


def _resolve(
    settings: TrainConfig, inputs: Inputs, trainer: Mapping[str, Any], model: Mapping[str, Any]
) -> TrainConfig:
    """Return the configuration with every default filled in and every input as config.yaml shows it."""
    shown: dict[str, Any] = {}
    for name in DATA_INPUTS:
        given = getattr(inputs, name)
        shown[name] = spell(given, whole=given is getattr(settings.data, name))
    words = {} if inputs.tokenizer is None else {"tokenizer": spell(inputs.tokenizer)}
    return evolve(
        settings,
        trainer=dict(trainer),
        model={"path": spell(inputs.model), **words, **model},
        data=evolve(settings.data, **shown),
    )


def _starting_point(model: Any, place: Claim) -> Any:
    """Return the model before training, which a resumed run needs as its reference: kept on disk if not had by name."""
    if place.start is None:
        return model
    if isinstance(model, PreTrainedModel):
        with quiet_transformers():
            model.load_state_dict(type(model).from_pretrained(place.start, dtype=model.dtype).state_dict())
        return model
    return place.start if isinstance(model, PretrainedConfig) else model


def _keep_start(policy: Any, place: Claim, ranks: Ranks) -> None:
    """Keep the starting model where it cannot be had again by name: resuming needs it as the reference."""
    kept = place.path / "start"
    if place.checkpoint is None or not kept.exists():
        ranks.on_main(lambda: save_beside(policy.save_pretrained, kept))
