"""Choose the components that a configuration names, each with its options checked."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import attrs

from rlcore.components import Component
from rlcore.config import structure
from rlcore.errors import ConfigError, InputsError
from rlcore.inputs import Inputs
from rlcore.registry import Registry, registries
from rlcore.settings import TrainConfig

MODEL_KEYS = ("path", "architecture", "tokenizer")
FILES = "jsonl"
FILE_NAMES = (FILES, "rlcore:jsonl")
"""The logger that writes metrics and completions to the run's folder, in every way it can be named."""


@attrs.frozen(eq=False)
class Choice:
    """Hold a component and its options, None where it has none."""

    component: Component[Any]
    options: Any

    def made(self) -> Any:
        """Return a sampler or pipeline: the target itself, or what it returns for its options where it has any."""
        target = self.component.target()
        return target if self.options is None else target(self.options)

    def maker(self) -> Callable[[], Any]:
        """Return what makes a store: the target, bound to its options where it has any."""
        target: Callable[..., Any] = self.component.target()
        return target if self.options is None else functools.partial(target, self.options)


@attrs.frozen(eq=False)
class Chosen:
    """Hold every component of a run."""

    trainer: Choice
    architecture: Choice
    sampler: Choice
    store: Choice
    prompts: Choice
    samples: Choice
    loggers: tuple[Choice, ...]

    @property
    def plugins(self) -> dict[str, str]:
        """Return the version of every distribution that a component comes from."""
        one = (self.trainer, self.architecture, self.sampler, self.store, self.prompts, self.samples)
        return {choice.component.dist: choice.component.version for choice in (*one, *self.loggers)}


def choose(settings: TrainConfig, inputs: Inputs, where: str) -> Chosen:
    """Look up every component that `settings` names, or that fits `inputs`.

    Raises:
        UnknownComponent: nobody registered a name.
        ConfigError: an option of one is unknown, of the wrong type or out of range.
    """
    known = registries()
    named = settings.trainer.get("name")
    fitting = named or inputs.fitting_trainer()
    if named is None and not known.trainers.matches(fitting):
        raise InputsError(
            f"what was given ({', '.join(inputs.given)}) calls for trainer '{fitting}', which is not installed "
            f"(its package is rlcore-{fitting}): install it, or name a trainer; see: rlcore list-plugins"
        )
    trainer = known.trainers.get(fitting)
    architecture = known.architectures.get(settings.model.get("architecture") or "causal_lm")
    return Chosen(
        trainer=_choice(trainer, settings.trainer, ("name",), where, "trainer"),
        architecture=_choice(architecture, settings.model, MODEL_KEYS, where, "model"),
        sampler=_named(known.samplers, settings.sampler, where, "sampler"),
        store=_named(known.rollout_stores, settings.store, where, "store"),
        prompts=_named(known.pipelines, settings.data.prompt_pipeline, where, "data.prompt_pipeline"),
        samples=_named(known.pipelines, settings.data.sample_pipeline, where, "data.sample_pipeline"),
        loggers=tuple(
            _named(known.loggers, entry, where, f"loggers[{i}]")
            # What goes to disk comes first, whatever else was asked for.
            for i, entry in enumerate((FILES, *(e for e in settings.loggers if _name(e) not in FILE_NAMES)), start=-1)
        ),
    )


def _named(registry: Registry[Any], entry: Any, where: str, path: str) -> Choice:
    """Look up what `entry` names: a name, or a mapping with `name` and options."""
    section = dict(entry) if isinstance(entry, Mapping) else {"name": entry}
    if not isinstance(section.get("name"), str):
        raise ConfigError(f"{where}: {path} = {entry!r}: must be a name, or a mapping with `name` and options")
    return _choice(registry.get(section["name"]), section, ("name",), where, path)


def _name(entry: Any) -> str:
    return str(entry.get("name") if isinstance(entry, Mapping) else entry)


def _choice(
    component: Component[Any], section: Mapping[str, Any], skip: tuple[str, ...], where: str, path: str
) -> Choice:
    """Structure a component's options, which are a section's keys but for those the core reads itself."""
    values = {name: value for name, value in section.items() if name not in skip}
    cls = component.config_class()
    if cls is not None:
        return Choice(component, structure(cls, values, where=where, path=path))
    if values:
        raise ConfigError(f"{where}: {path}.{next(iter(values))}: '{component.name}' has no options")
    return Choice(component, None)
