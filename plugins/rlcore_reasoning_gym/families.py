"""Families of reasoning-gym: their options and levels, checked, and their questions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any

from reasoning_gym.factory import CURRICULA, DATASETS

from rlcore.config import evolve
from rlcore.errors import ConfigError
from rlcore_environments.adapter import near_names
from rlcore_reasoning_gym.config import FamilyOptions

WHERE = "data.environment.families"
LARGEST_SEED = 2**32
"""The library takes seeds below this number."""


def make_dataset(name: str, level: int | None, options: Mapping[str, Any], seed: int) -> Any:
    """Return the library's dataset of one question, its number 0.

    Args:
        name: the family.
        level: the level of all attributes of the family's curriculum; None for the defaults of the library.
        options: of the family's dataset; they take precedence over the level.
        seed: decides the question.
    """
    dataset, config = DATASETS[name]
    given = {**options, "seed": seed % LARGEST_SEED, "size": 1}
    if level is None:
        return dataset(config(**given))
    curriculum = CURRICULA[name]()
    curriculum.set_global_level(level)
    return dataset(replace(curriculum.generate_configuration(), **given))


def checked_family(name: str, options: FamilyOptions, level: int | tuple[int, int] | None) -> FamilyOptions:
    """Return the options of a family with its level, which is that of all families by default.

    Raises:
        ConfigError: the family, one of its options or a level is unknown to the library, or the library refuses them.
    """
    if name not in DATASETS or name == "composite":
        hint = near_names(name, DATASETS) or "; `reasoning_gym.factory.DATASETS` holds all names"
        raise ConfigError(f"{WHERE}: reasoning-gym has no family '{name}'{hint}")
    known = {field.name for field in fields(DATASETS[name][1])} - {"seed", "size"}
    if unknown := sorted(set(options.options) - known):
        raise ConfigError(f"{WHERE}.{name}.options: unknown option '{unknown[0]}'; known: {', '.join(sorted(known))}")
    found = evolve(options, level=level if options.level is None else options.level)
    levels = found.level if isinstance(found.level, tuple) else (found.level,)
    for each in levels:
        _check_level(name, each)
        try:
            make_dataset(name, each, options.options, 0)
        except (AssertionError, TypeError, ValueError) as error:
            raise ConfigError(f"{WHERE}.{name}: reasoning-gym refuses {dict(options.options)}: {error}") from error
    return found


def _check_level(name: str, level: int | None) -> None:
    if level is None:
        return
    attributes = CURRICULA[name]().attributes.values() if name in CURRICULA else ()
    if not attributes:
        raise ConfigError(f"{WHERE}.{name}: level = {level}: the family has no levels; set its `options` instead")
    highest = max(len(each.levels) for each in attributes) - 1
    if level > highest:
        raise ConfigError(f"{WHERE}.{name}: level = {level}: must lie in [0, {highest}], the levels of the family")
