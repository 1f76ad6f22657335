"""Choose all components of a run from its configuration, each with its options checked.

If the user names no trainer, it is the one whose class attribute `default_for` fits the given inputs best.

Also in this file: check that a trainer has the form of `rlcore.protocols.Trainer` before its first step; the
environment of a run: chosen by name or passed as an object, and played by the package that plays episodes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import attrs

from rlcore.components import Component
from rlcore.config import Problems
from rlcore.errors import ConfigError, InputsError, PluginError, UnknownTrainer
from rlcore.plugins.builtin import published
from rlcore.plugins.choice import Choice, Chooser, Wrapping
from rlcore.plugins.observers import require_provider
from rlcore.plugins.registry import Registry, registries, services
from rlcore.rewards.chosen_rewards import ChosenReward, choose_rewards
from rlcore.safe_text import show
from rlcore.settings import TrainConfig
from rlcore.training.inputs import DATA_INPUTS, Inputs, refuse_descriptions

if TYPE_CHECKING:
    from rlcore.protocols import EpisodePlayer, Trainer


REWARD = "environment"
"""Name of the registered reward that passes on what the environment gave."""
OPTION = "data.environment"


def with_tools(environment: object, tools: object) -> object:
    """Return the environment of a run to which a program passed `tools`: the environment `tools` with these functions.

    Raises:
        InputsError: an environment is passed as well.
    """
    if tools is None:
        return environment
    if environment is not None:
        raise InputsError("environment and tools: pass one of them; an environment declares its own tools")
    return {"name": "tools", "functions": tools}


def choose_environment(inputs: Inputs, chooser: Chooser, where: str) -> Choice | None:
    """Look up the environment that a name or a mapping refers to; None for an object of the user's own, and for none.

    Raises:
        ConfigError: the package that plays episodes is missing.
        UnknownEnvironment: no plugin registered the name.
    """
    given = inputs.environment
    if given is None:
        return None
    refuse_descriptions(given, OPTION)
    require_provider(OPTION, given.get("name") if isinstance(given, Mapping) else given, where)
    known = registries().environments
    if isinstance(given, str) and ":" in given and given not in known:  # module:attribute
        return None
    return chooser.named(known, given, OPTION) if isinstance(given, str | Mapping) else None


def reward_forms(inputs: Inputs) -> Any:
    """Return the reward functions of a run, the environment's reward among them if there is one."""
    given = inputs.reward_fn
    if inputs.environment is None or REWARD not in registries().rewards or _names_reward(given):
        return given
    if given is None:
        return REWARD
    if isinstance(given, Mapping) and "fn" not in given and given.get("name") not in registries().rewards:
        return given if REWARD in given else {**given, REWARD: REWARD}
    several = isinstance(given, (list, tuple)) and not (len(given) == 2 and isinstance(given[1], (int, float)))
    entries = list(given) if several else [given]
    return entries if any(map(_names_reward, entries)) else [*entries, REWARD]


def _names_reward(entry: object) -> bool:
    if isinstance(entry, Mapping):
        entry = entry.get("fn", entry.get("name"))
    elif isinstance(entry, (list, tuple)) and len(entry) == 2:
        entry = entry[0]
    return isinstance(entry, str) and entry == REWARD


def open_player(choice: Choice | None, inputs: Inputs, config: TrainConfig) -> EpisodePlayer:
    """Return what plays the episodes of a run.

    Raises:
        ConfigError: no plugin plays episodes, or the environment or `data.episodes` cannot be used.
    """
    environment = inputs.environment if choice is None else choice.build()
    player = services().episode_player(environment, config)
    if player is None:
        raise ConfigError(f"{OPTION}: no plugin plays episodes")
    return player


def with_rows(inputs: Inputs, player: EpisodePlayer) -> Inputs:
    """Return the inputs with the rows of the environment where the user gave no prompts, or none to evaluate on.

    Raises:
        InputsError: there are no prompts at all, and the environment has no rows of its own.
    """
    inputs = attrs.evolve(inputs, reward_fn=reward_forms(inputs))
    rows = player.rows("train") if inputs.prompts is None else inputs.prompts
    held_out = player.rows("eval") if inputs.eval_prompts is None else inputs.eval_prompts
    if rows is None and (held_out is None or inputs.samples is None):
        raise InputsError(
            f"{OPTION}: the environment has no rows of its own, so give prompts: rows that its reset(row, seed=...) "
            "receives, such as prompts=[{'level': 1}, {'level': 2}]"
        )
    return attrs.evolve(inputs, prompts=rows, eval_prompts=held_out)


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


def own_choices(component: Component[Any], options: object) -> dict[str, str]:
    """Return the components that a trainer's class names for runs in which the user names none.

    Args:
        component: the trainer.
        options: the trainer's options, with which an attribute that is a function is called.

    Returns:
        Those of `prompt_pipeline`, `sample_pipeline` and `architecture` that it names.

    Raises:
        PluginError: an attribute is no name.
    """
    from rlcore.protocols import TrainerTraits  # imports torch, as the trainer does

    traits = TrainerTraits(component.target())
    stated = {
        "prompt_pipeline": traits.prompt_pipeline, "sample_pipeline": traits.sample_pipeline,
        "architecture": traits.architecture,
    }  # fmt: skip
    found: dict[str, str] = {}
    for attribute, value in stated.items():
        name = value(options) if callable(value) else value
        if not isinstance(name, str | None):
            raise PluginError(f"{component}: {attribute} = {name!r:.80}: must be the name of a registered component")
        found |= {attribute: name} if name else {}
    return found


def _own_choices(trainer: Choice | None) -> dict[str, str]:
    if trainer is None or (trainer.options is None and trainer.component.config_class() is not None):  # after an error
        return {}
    return own_choices(trainer.component, trainer.options)


def _find_architecture(settings: TrainConfig, inputs: Inputs, own: Mapping[str, str]) -> Component[Any]:
    architectures, revision = registries().architectures, settings.model.get("revision")
    if named := settings.model.get("architecture") or own.get("architecture"):
        return architectures.get(named)
    return fitting_architecture(architectures, inputs.model, revision if isinstance(revision, str) else None)


def fitting_architecture(
    architectures: Iterable[Component[Any]], spec: object, revision: str | None = None
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


def _choose_rewards(reward_fn: object, chooser: Chooser) -> tuple[ChosenReward, ...]:
    refuse_descriptions(reward_fn, "data.reward_fn")
    return () if reward_fn is None else choose_rewards(reward_fn, chooser, "data.reward_fn")


def _name(entry: object) -> str:
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


def _candidates(trainers: Registry[object]) -> list[Candidate]:
    from rlcore.protocols import TrainerTraits  # imports torch, as the trainers below do

    found = []
    for component in trainers:
        try:
            target = component.target()
        except PluginError:  # reported where that trainer is asked for
            continue
        fits, needs = tuple(TrainerTraits(target).default_for), tuple(TrainerTraits(target).needs)
        found.append(Candidate(component.name, fits, component, needs))
    here = {candidate.name for candidate in found}
    return found + [Candidate(name, one.default_for) for name, one in published("trainers").items() if name not in here]


def _choices(everyone: Sequence[Candidate]) -> str:
    """List which inputs call for which trainer, each as `input and input ('trainer')`."""
    fits = sorted((each for each in everyone if each.fits), key=lambda each: each.weight, reverse=True)
    return " or ".join(f"{' and '.join(each.fits)} ('{each.name}')" for each in fits)


METHODS = ("steps", "policy", "state_dict", "load_state_dict")
BUDGETS = ("steps", "epochs", "time_s")


def check_declared(component: Component[object], trainer_type: object) -> None:
    """Check the class attributes of a trainer: `needs`, `default_for`, `headline` and `default_budget`.

    Raises:
        PluginError: an attribute is missing or has another form than `rlcore.protocols.Trainer` describes.
    """
    from rlcore.protocols import TrainerTraits  # imports torch

    needs = getattr(trainer_type, "needs", None)
    if not isinstance(needs, (tuple, list)) or any(name not in DATA_INPUTS for name in needs):
        raise PluginError(
            f'{component}: needs = {needs!r}: must be a tuple of inputs, such as ("reward_fn", "prompts"), among '
            f"{', '.join(DATA_INPUTS)}"
        )
    default_for, headline = TrainerTraits(trainer_type).default_for, TrainerTraits(trainer_type).headline
    if not isinstance(default_for, (tuple, list)) or any(name not in DATA_INPUTS for name in default_for):
        raise PluginError(
            f'{component}: default_for = {default_for!r}: must be a tuple of inputs, such as ("samples",), among '
            f"{', '.join(DATA_INPUTS)}"
        )
    if not isinstance(headline, (tuple, list)) or any(not isinstance(e, str) or e.split() != [e] for e in headline):
        raise PluginError(
            f'{component}: headline = {headline!r}: must be a tuple of the names of metrics, such as ("reward/mean", '
            '"kl/"), without spaces'
        )
    budget = getattr(trainer_type, "default_budget", None)
    if not isinstance(budget, Mapping) or any(name not in BUDGETS for name in budget):
        raise PluginError(
            f'{component}: default_budget = {budget!r}: must be a mapping such as {{"steps": 100}}, with keys among '
            f"{', '.join(BUDGETS)}"
        )


def check_built(component: Component[object], trainer: Trainer) -> None:
    """Check that a trainer has the methods of `rlcore.protocols.Trainer` and that `policy()` returns one.

    Raises:
        PluginError: a method is missing, or `policy()` returned None.
    """
    missing = [name for name in METHODS if not callable(getattr(trainer, name, None))]
    if missing:
        raise PluginError(f"{component} has no method {missing[0]}(); a trainer has {', '.join(METHODS)}")
    if trainer.policy() is None:
        raise PluginError(f"{component}: policy() returned None; return the policy that run.build() returned")
