"""Choose the components that a configuration names, each with its options checked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from rlcore.components import Component
from rlcore.config import structure
from rlcore.errors import ConfigError, InputsError
from rlcore.inputs import Inputs
from rlcore.registry import registries
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


@attrs.frozen(eq=False)
class Chosen:
    """Hold every component of a run."""

    trainer: Choice
    architecture: Choice
    sampler: Component[Any]
    store: Component[Any]
    prompts: Component[Any]
    samples: Component[Any]
    loggers: tuple[Choice, ...]

    @property
    def plugins(self) -> dict[str, str]:
        """Return the version of every distribution that a component comes from."""
        with_options = (self.trainer, self.architecture, *self.loggers)
        plain = (self.sampler, self.store, self.prompts, self.samples)
        return {part.dist: part.version for part in (*(choice.component for choice in with_options), *plain)}


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
        sampler=known.samplers.get(settings.sampler),
        store=known.rollout_stores.get(settings.store),
        prompts=known.pipelines.get(settings.data.prompt_pipeline),
        samples=known.pipelines.get(settings.data.sample_pipeline),
        loggers=(
            _logger(FILES, where, 0),  # what goes to disk comes first, whatever else was asked for
            *(_logger(entry, where, i) for i, entry in enumerate(settings.loggers) if _name(entry) not in FILE_NAMES),
        ),
    )


def _logger(entry: Any, where: str, number: int) -> Choice:
    section = dict(entry) if isinstance(entry, Mapping) else {"name": entry}
    component = registries().loggers.get(_name(entry))
    return _choice(component, section, ("name",), where, f"loggers[{number}]")


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
