"""Choose all components of a run from its configuration, each with its options checked."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from rlcore.plugins.choice import Choice, Chooser
from rlcore.plugins.registry import registries
from rlcore.plugins.wrappers import Wrapping
from rlcore.rewards.chosen_rewards import ChosenReward, choose_rewards
from rlcore.settings import TrainConfig
from rlcore.training.default_trainer import default_trainer
from rlcore.training.inputs import Inputs, refuse_descriptions

MODEL_KEYS = ("path", "architecture", "tokenizer")
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
    prompts: Choice
    samples: Choice
    loggers: tuple[Choice, ...]
    rewards: tuple[ChosenReward, ...]

    @property
    def plugins(self) -> dict[str, str]:
        """Versions of the dists that the components come from."""
        one = (self.trainer, self.architecture, self.sampler, self.store, self.prompts, self.samples)
        rewards = [reward.choice for reward in self.rewards if reward.choice is not None]
        return {choice.component.dist: choice.component.version for choice in (*one, *self.loggers, *rewards)}


def choose(settings: TrainConfig, inputs: Inputs, where: str, wrapping: Wrapping) -> Chosen:
    """Look up every component that `settings` names or that fits `inputs`, and collect the plugins that wrap it.

    Raises:
        UnknownComponent: no plugin registered a name.
        InputsError: no trainer is named, and none fits the inputs.
        ConfigError: an option of a component is unknown, of the wrong type or out of range.
        DataError: `reward_fn` has none of the accepted forms.
    """
    known = registries()
    named = settings.trainer.get("name")
    trainer = default_trainer(inputs.given, known.trainers) if named is None else known.trainers.get(named)
    architecture = known.architectures.get(
        settings.model.get("architecture") or _default_architecture(settings, inputs)
    )
    chooser = Chooser(where, wrapping)
    data = settings.data
    # The logger of the run's folder is always first.
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
        rewards=() if inputs.reward_fn is None else choose_rewards(inputs.reward_fn, chooser, "data.reward_fn"),
    )


def _default_architecture(settings: TrainConfig, inputs: Inputs) -> str:
    from rlcore.models.kind import fitting_architecture  # which needs transformers

    revision = settings.model.get("revision")
    return fitting_architecture(inputs.model, revision if isinstance(revision, str) else None)


def _name(entry: Any) -> str:
    return str(entry.get("name") if isinstance(entry, Mapping) else entry)
