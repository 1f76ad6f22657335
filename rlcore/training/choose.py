"""Choose the components that a configuration names, each with its options checked."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs

from rlcore.components import Component
from rlcore.config import structure
from rlcore.errors import ConfigError, DataError, InputsError, PluginError, UnknownComponent
from rlcore.plugins.registry import Registry, registries
from rlcore.plugins.wrappers import Wrapping
from rlcore.rewards.forms import OWN_KEYS, RewardForm, read_forms, resolve
from rlcore.settings import TrainConfig
from rlcore.training.inputs import Inputs, refuse_descriptions

MODEL_KEYS = ("path", "architecture", "tokenizer")
FILES = "jsonl"
FILE_NAMES = (FILES, "rlcore:jsonl")
"""The logger that writes metrics and completions to the run's folder, in every way it can be named."""


@attrs.frozen(eq=False)
class Choice:
    """Hold a component, its options (None where it has none), and what wraps what it builds."""

    component: Component[Any]
    options: Any
    wrapping: Wrapping

    def wrapped(self, built: Any) -> Any:
        """Return what is used in place of what the component built."""
        return self.wrapping.wrapped(self.component, built)

    def made(self) -> Any:
        """Return a sampler, pipeline or reward: the target, or what it returns for its options where it has any."""
        target = self.component.target()
        return self.wrapped(target if self.options is None else target(self.options))

    def maker(self) -> Callable[[], Any]:
        """Return what makes a store: of its options, where it has any."""
        target: Callable[..., Any] = self.component.target()
        return lambda: self.wrapped(target() if self.options is None else target(self.options))


@attrs.frozen(eq=False)
class ChosenReward:
    """Hold one reward function that is not loaded yet, what it goes by, and its weight.

    Attributes:
        choice: the registered reward; None for a function of the user's own.
    """

    name: str
    weight: float
    load: Callable[[], Callable[..., Any]]
    choice: Choice | None = None


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
    rewards: tuple[ChosenReward, ...]

    @property
    def plugins(self) -> dict[str, str]:
        """Return the version of every distribution that a component comes from."""
        one = (self.trainer, self.architecture, self.sampler, self.store, self.prompts, self.samples)
        rewards = [reward.choice for reward in self.rewards if reward.choice is not None]
        return {choice.component.dist: choice.component.version for choice in (*one, *self.loggers, *rewards)}


def choose(settings: TrainConfig, inputs: Inputs, where: str, wrapping: Wrapping) -> Chosen:
    """Look up every component that `settings` names, or that fits `inputs`, and ask what wraps it.

    Raises:
        UnknownComponent: nobody registered a name.
        ConfigError: an option of one is unknown, of the wrong type or out of range.
        DataError: `reward_fn` is none of the forms it may have.
    """
    known = registries()
    named = settings.trainer.get("name")
    fitting = named or inputs.fitting_trainer()
    try:
        trainer = known.trainers.get(fitting)
    except UnknownComponent as error:
        if named is not None:
            raise
        raise InputsError(
            f"what was given ({', '.join(inputs.given)}) calls for trainer '{fitting}', and none was named: {error}"
        ) from error
    architecture = known.architectures.get(settings.model.get("architecture") or _fitting(settings, inputs))
    chooser = Chooser(where, wrapping)
    data = settings.data
    # What goes to disk comes first, whatever else was asked for.
    loggers = (FILES, *(entry for entry in settings.loggers if _name(entry) not in FILE_NAMES))
    refuse_descriptions(inputs.reward_fn, "data.reward_fn")
    return Chosen(
        trainer=chooser.choice(trainer, settings.trainer, "trainer", skip=("name",)),
        architecture=chooser.choice(architecture, settings.model, "model", skip=MODEL_KEYS),
        sampler=chooser.named(known.samplers, settings.sampler, "sampler"),
        store=chooser.named(known.rollout_stores, settings.store, "store"),
        prompts=chooser.named(known.pipelines, data.prompt_pipeline, "data.prompt_pipeline"),
        samples=chooser.named(known.pipelines, data.sample_pipeline, "data.sample_pipeline"),
        loggers=tuple(
            chooser.named(known.loggers, entry, f"loggers[{i}]") for i, entry in enumerate(loggers, start=-1)
        ),
        rewards=() if inputs.reward_fn is None else chooser.rewards(inputs.reward_fn, "data.reward_fn"),
    )


def _fitting(settings: TrainConfig, inputs: Inputs) -> str:
    from rlcore.models.kind import fitting_architecture  # which needs transformers

    revision = settings.model.get("revision")
    return fitting_architecture(inputs.model, revision if isinstance(revision, str) else None)


def choose_rewards(reward_fn: Any) -> tuple[ChosenReward, ...]:
    """Understand any form of `reward_fn`, outside a run.

    Raises:
        DataError: it is none of the forms, or a weight is no finite number.
        UnknownReward: nobody registered a reward of that name.
        ConfigError: an option of one is unknown, of the wrong type or out of range.
    """
    return Chooser("", Wrapping()).rewards(reward_fn, "reward_fn")


@attrs.frozen
class Chooser:
    """Look up names; `where` is where they were written."""

    where: str
    wrapping: Wrapping

    def named(self, registry: Registry[Any], entry: Any, path: str) -> Choice:
        """Look up what `entry` names: a name, or a mapping with `name` and options."""
        section = dict(entry) if isinstance(entry, Mapping) else {"name": entry}
        if not isinstance(section.get("name"), str):
            raise ConfigError(f"{self.where}: {path} = {entry!r}: must be a name, or a mapping with `name` and options")
        return self.choice(registry.get(section["name"]), section, path, skip=("name",))

    def choice(
        self, component: Component[Any], section: Mapping[str, Any], path: str, *, skip: tuple[str, ...] = ()
    ) -> Choice:
        """Structure a component's options: a section's keys but for those the core reads itself."""
        self.wrapping.layers(component)
        values = {name: value for name, value in section.items() if name not in skip}
        cls = component.config_class()
        check_keys(component, cls, skip)
        if cls is not None:
            return Choice(component, structure(cls, values, where=self.where, path=path), self.wrapping)
        if values:
            raise ConfigError(f"{self.where}: {path}.{next(iter(values))}: '{component.name}' has no options")
        return Choice(component, None, self.wrapping)

    def rewards(self, reward_fn: Any, path: str) -> tuple[ChosenReward, ...]:
        """Tell registered rewards from functions of the user's own."""
        return tuple(self._reward(form) for form in read_forms(reward_fn, path))

    def _reward(self, form: RewardForm) -> ChosenReward:
        known, fn = registries().rewards, form.fn
        if isinstance(fn, str) and (fn in known or not _names_module(fn)):
            component = known.get(fn)
            check_keys(component, component.config_class(), OWN_KEYS)
            choice = self.choice(component, form.options, form.path)
            return ChosenReward(form.name or fn, form.weight, choice.made, choice)
        if form.options:
            raise DataError(
                f"{form.path}: {', '.join(map(repr, form.options))}: only a registered reward may have options; beside "
                "'fn' there may be 'weight' and 'name', nothing else"
            )
        name, load = resolve(fn, "reward_fn")
        return ChosenReward(form.name or name, form.weight, load)


def _names_module(reference: str) -> bool:
    """Tell whether a reference may be `module:function`; a dist's name often cannot be a module's."""
    module, colon, _ = reference.partition(":")
    return bool(colon) and all(part.isidentifier() for part in module.split("."))


def check_keys(component: Component[Any], cls: type | None, own: Sequence[str]) -> None:
    """Refuse options that nobody could ever set, because their keys say something else in the same mapping.

    Raises:
        PluginError: an option is called as one of the keys that the core reads itself.
    """
    taken = [] if cls is None else [field.name for field in attrs.fields(cls) if field.name in own]
    if taken:
        raise PluginError(
            f"{component} has an option '{taken[0]}', which nobody could set: beside a component's options that key "
            f"is the core's own (as {', '.join(own)}); its author must call it something else"
        )


def _name(entry: Any) -> str:
    return str(entry.get("name") if isinstance(entry, Mapping) else entry)
