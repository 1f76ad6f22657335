"""Choose the reward functions of a run: registered rewards by name, or the user's own functions."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

import attrs

from rlcore.config.paths import existing_path
from rlcore.errors import DataError
from rlcore.plugins.choice import Choice, Chooser, check_keys
from rlcore.plugins.registry import registries
from rlcore.plugins.wrappers import Wrapping
from rlcore.rewards.forms import OWN_KEYS, RewardForm, read_forms, resolve

MODEL = "reward_model"
"""Name of the registered reward that stands for a model, or the folder of one, given in place of a function."""
MODEL_FILES = ("config.json", "adapter_config.json")


@attrs.frozen(eq=False)
class ChosenReward:
    """One reward function before it is loaded.

    Attributes:
        name: its name in metrics.
        weight: its factor in the total.
        load: returns the function.
        choice: the registered reward; None for a user's own function.
    """

    name: str
    weight: float
    load: Callable[[], Callable[..., Any]]
    choice: Choice | None = None


def choose_rewards(reward_fn: Any, chooser: Chooser | None = None, path: str = "reward_fn") -> tuple[ChosenReward, ...]:
    """Read any form of `reward_fn`.

    Args:
        reward_fn: the user's value of the option.
        chooser: looks up registered rewards; one without a file name in its errors by default.
        path: path of the option, for errors.

    Raises:
        DataError: `reward_fn` has none of the allowed forms, or a weight is not a finite number.
        UnknownReward: no reward is registered under that name.
        ConfigError: an option of a registered reward is unknown, of the wrong type or out of range.
    """
    chooser = chooser or Chooser("", Wrapping())
    return tuple(_choose(form, chooser) for form in read_forms(reward_fn, registries().rewards, path))


def _choose(form: RewardForm, chooser: Chooser) -> ChosenReward:
    known, fn = registries().rewards, form.fn
    if names_model(fn) and fn not in known:
        form = attrs.evolve(form, fn=MODEL, options={"path": fn, **form.options}, name=form.name or MODEL)
        fn = MODEL
    if isinstance(fn, str) and (fn in known or not _names_module(fn)):
        component = known.get(fn)
        check_keys(component, component.config_class(), OWN_KEYS)
        choice = chooser.choice(component, form.options, form.path)
        return ChosenReward(form.name or fn, form.weight, choice.build, choice)
    if form.options:
        raise DataError(
            f"{form.path}: {', '.join(map(repr, form.options))}: only a registered reward has options; the allowed "
            "keys are 'fn', 'weight' and 'name'"
        )
    name, load = resolve(fn, "reward_fn")
    return ChosenReward(form.name or name, form.weight, load)


def names_model(fn: Any) -> bool:
    """Return whether an entry is a model of `transformers` in memory, or the folder of one."""
    if isinstance(fn, (str, os.PathLike)):
        folder = existing_path(os.fspath(fn))
        return folder is not None and any((folder / name).exists() for name in MODEL_FILES)
    transformers: Any = sys.modules.get("transformers")
    return transformers is not None and isinstance(fn, transformers.PreTrainedModel)


def _names_module(reference: str) -> bool:
    """Return whether a reference may be `module:function`; many dist names are no valid module names."""
    module, colon, _ = reference.partition(":")
    return bool(colon) and all(part.isidentifier() for part in module.split("."))
