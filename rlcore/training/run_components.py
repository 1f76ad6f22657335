"""Choose all components of a run from its configuration, each with its options checked.

If the user names no trainer, it is the one whose class attribute `default_for` fits the given inputs best.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import attrs

from rlcore.components import Component
from rlcore.config import Problems
from rlcore.errors import InputsError, PluginError, UnknownTrainer
from rlcore.plugins.builtin import published
from rlcore.plugins.choice import Choice, Chooser
from rlcore.plugins.registry import Registry, registries
from rlcore.plugins.wrappers import Wrapping
from rlcore.rewards.chosen_rewards import ChosenReward, choose_rewards
from rlcore.safe_text import show
from rlcore.settings import TrainConfig
from rlcore.training.inputs import Inputs, refuse_descriptions
from rlcore.training.run_environment import choose_environment, reward_forms

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
    environment: Choice | None = None

    @property
    def plugins(self) -> dict[str, str]:
        """Versions of the dists that the components come from."""
        one = (self.trainer, self.architecture, self.sampler, self.store, self.sharding, self.prompts, self.samples)
        further = [*(reward.choice for reward in self.rewards), self.environment]
        every = (*one, *self.loggers, *(choice for choice in further if choice is not None))
        return {choice.component.dist: choice.component.version for choice in every}


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
        rewards=attempt(_choose_rewards, reward_forms(inputs), chooser),
        environment=attempt(choose_environment, inputs, chooser, where),
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


@attrs.frozen
class Candidate:
    """A trainer that is the default for some inputs.

    Attributes:
        name: its short name.
        fits: the inputs, from its class or, where it is not installed, from the table of published plugins.
        component: None where it is not installed.
        needs: the inputs that it cannot do without.
    """

    name: str
    fits: tuple[str, ...]
    component: Component[Any] | None = None
    needs: tuple[str, ...] = ()

    @property
    def weight(self) -> tuple[bool, int]:
        """Rank this candidate: a reward function outweighs samples, and several inputs outweigh one of them."""
        return "reward_fn" in self.fits, len(self.fits)


def default_trainer(given: Sequence[str], trainers: Registry[Any]) -> Component[Any]:
    """Return the trainer that fits the inputs best.

    Args:
        given: names of the inputs that the user gave.
        trainers: the installed trainers.

    Raises:
        InputsError: no trainer fits, several fit equally well, or the one that fits is not installed.
    """
    everyone = _candidates(trainers)
    fitting = [each for each in everyone if each.fits and set(each.fits) <= set(given)]
    if not fitting:
        raise InputsError(
            f"nothing to learn from: given were {', '.join(given) or 'no inputs'}; pass {_choices(everyone)}"
        )
    weight = max(each.weight for each in fitting)
    best = [each for each in fitting if each.weight == weight]
    installed = [each.component for each in best if each.component is not None]
    if len(installed) == 1:
        return installed[0]
    if installed:
        names = ", ".join(f"'{component.qualified}'" for component in installed)
        raise InputsError(f"what was given ({', '.join(given)}) fits several trainers, {names}; name one of them")
    try:
        return trainers.get(best[0].name)
    except UnknownTrainer as error:
        raise InputsError(
            f"what was given ({', '.join(given)}) calls for trainer '{best[0].name}', and none was named: {error}"
        ) from error


def other_trainer(given: Collection[str], trainers: Registry[Any], *, than: str) -> str | None:
    """Return the name of an installed trainer, other than `than`, that has all it needs; None if there is none."""
    usable = [
        each
        for each in _candidates(trainers)
        if each.component is not None and each.name != than and each.fits and {*each.fits, *each.needs} <= set(given)
    ]
    return max(usable, key=lambda each: each.weight).name if usable else None


def _candidates(trainers: Registry[Any]) -> list[Candidate]:
    found = []
    for component in trainers:
        try:
            target = component.target()
        except PluginError:  # reported where that trainer is asked for
            continue
        fits, needs = tuple(getattr(target, "default_for", ())), tuple(getattr(target, "needs", ()))
        found.append(Candidate(component.name, fits, component, needs))
    here = {candidate.name for candidate in found}
    return found + [Candidate(name, one.default_for) for name, one in published("trainers").items() if name not in here]


def _choices(everyone: Sequence[Candidate]) -> str:
    """List which inputs call for which trainer, each as `input and input ('trainer')`."""
    fits = sorted((each for each in everyone if each.fits), key=lambda each: each.weight, reverse=True)
    return " or ".join(f"{' and '.join(each.fits)} ('{each.name}')" for each in fits)
