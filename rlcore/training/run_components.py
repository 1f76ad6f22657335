"""Choose all components of a run from its configuration, each with its options checked."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import attrs

from rlcore.components import Component
from rlcore.config import Problems
from rlcore.errors import InputsError, PluginError
from rlcore.plugins.choice import Choice, Chooser
from rlcore.plugins.registry import registries
from rlcore.plugins.wrappers import Wrapping
from rlcore.rewards.chosen_rewards import ChosenReward, choose_rewards
from rlcore.safe_text import show
from rlcore.settings import TrainConfig
from rlcore.training.default_trainer import default_trainer
from rlcore.training.inputs import Inputs, refuse_descriptions

MODEL_KEYS = ("path", "architecture", "tokenizer")
PIPELINES = {"prompt_pipeline": "prompts", "sample_pipeline": "samples"}
"""Option of the section `data` that names a pipeline → its name where neither the user nor the trainer names one."""
FILES = "jsonl"
FILE_NAMES = (FILES, "rlcore:jsonl")
"""Names of the logger that writes metrics and completions to the run's folder."""


@attrs.frozen(eq=False)
class Chosen:
    """Every component of a run."""

    trainer: Choice
    architecture: Choice
    sampler: Choice
    store: Choice
    sharding: Choice
    prompts: Choice
    samples: Choice
    loggers: tuple[Choice, ...]
    rewards: tuple[ChosenReward, ...]

    @property
    def plugins(self) -> dict[str, str]:
        """Versions of the dists that the components come from."""
        one = (self.trainer, self.architecture, self.sampler, self.store, self.sharding, self.prompts, self.samples)
        rewards = [reward.choice for reward in self.rewards if reward.choice is not None]
        return {choice.component.dist: choice.component.version for choice in (*one, *self.loggers, *rewards)}


def choose(
    settings: TrainConfig, inputs: Inputs, where: str, wrapping: Wrapping, problems: Problems | None = None
) -> Chosen:
    """Look up every component that `settings` names or that fits `inputs`, and collect the plugins that wrap it.

    With `problems`, errors are collected there instead of raised, and the components that they prevent are None.

    Raises:
        UnknownComponent: no plugin registered a name.
        InputsError: no trainer is named, and none fits the inputs.
        ConfigError: an option of a component is unknown, of the wrong type or out of range; or several errors.
        DataError: `reward_fn` has none of the accepted forms.
    """
    known, data = registries(), settings.data
    collected = problems or Problems()
    attempt, chooser = collected.attempt, Chooser(where, wrapping, collected)
    # The logger of the run's folder is always first.
    loggers = (FILES, *(entry for entry in settings.loggers if _name(entry) not in FILE_NAMES))
    trainer = attempt(
        lambda: chooser.choice(_find_trainer(settings, inputs), settings.trainer, "trainer", skip=("name",))
    )
    own = attempt(_own_choices, trainer) or {}
    prompts, samples = ({**PIPELINES, **own}[name] for name in PIPELINES)
    chosen = Chosen(
        trainer=trainer,
        architecture=attempt(
            lambda: chooser.choice(_find_architecture(settings, inputs, own), settings.model, "model", skip=MODEL_KEYS)
        ),
        sampler=attempt(chooser.named, known.samplers, settings.sampler, "sampler"),
        store=attempt(chooser.named, known.rollout_stores, settings.store, "store"),
        sharding=attempt(chooser.named, known.shardings, settings.run.shard, "run.shard"),
        prompts=attempt(chooser.named, known.pipelines, data.prompt_pipeline or prompts, "data.prompt_pipeline"),
        samples=attempt(chooser.named, known.pipelines, data.sample_pipeline or samples, "data.sample_pipeline"),
        loggers=tuple(
            attempt(chooser.named, known.loggers, entry, f"loggers[{i}]") for i, entry in enumerate(loggers, start=-1)
        ),
        rewards=attempt(_choose_rewards, inputs.reward_fn, chooser),
    )
    if problems is None:
        collected.check()
    return chosen


def _find_trainer(settings: TrainConfig, inputs: Inputs) -> Component[Any]:
    trainers, named = registries().trainers, settings.trainer.get("name")
    return default_trainer(inputs.given, trainers) if named is None else trainers.get(named)


def own_choice(component: Component[Any], attribute: str, options: Any) -> str | None:
    """Return the name in a class attribute of a trainer, such as `sample_pipeline`; None if it has no such attribute.

    Args:
        component: the trainer.
        attribute: `sample_pipeline`, `prompt_pipeline` or `architecture`.
        options: the trainer's options, which an attribute that is a function is called with.

    Raises:
        PluginError: the attribute is no name.
    """
    value = getattr(component.target(), attribute, None)
    name = value(options) if callable(value) else value
    if not isinstance(name, str | None):
        raise PluginError(f"{component}: {attribute} = {name!r:.80}: must be the name of a registered component")
    return name


def _own_choices(trainer: Choice | None) -> dict[str, str]:
    """Return the components that a trainer's class names for a run in which the user names none."""
    if trainer is None or (trainer.options is None and trainer.component.config_class() is not None):  # after an error
        return {}
    found = {name: own_choice(trainer.component, name, trainer.options) for name in (*PIPELINES, "architecture")}
    return {name: own for name, own in found.items() if own}


def _find_architecture(settings: TrainConfig, inputs: Inputs, own: Mapping[str, str]) -> Component[Any]:
    architectures, revision = registries().architectures, settings.model.get("revision")
    if named := settings.model.get("architecture") or own.get("architecture"):
        return architectures.get(named)
    return fitting_architecture(architectures, inputs.model, revision if isinstance(revision, str) else None)


def fitting_architecture(
    architectures: Iterable[Component[Any]], spec: Any, revision: str | None = None
) -> Component[Any]:
    """Return the architecture that fits a model best; of several, the first in their order.

    Raises:
        InputsError: none states that it fits.
        PluginError: the function with which one states it raises.
    """
    fits = [(component.fits(spec, revision), component) for component in architectures]
    best, component = max(fits, key=lambda pair: pair[0], default=(0, None))
    if component is None or not best:
        raise InputsError(
            f"model = {show(spec)}: no installed architecture takes it by itself; name one with model.architecture "
            "(rlcore list-plugins)"
        )
    return component


def _choose_rewards(reward_fn: Any, chooser: Chooser) -> tuple[ChosenReward, ...]:
    refuse_descriptions(reward_fn, "data.reward_fn")
    return () if reward_fn is None else choose_rewards(reward_fn, chooser, "data.reward_fn")


def _name(entry: Any) -> str:
    return str(entry.get("name") if isinstance(entry, Mapping) else entry)
