"""The environment `reasoning_gym`: questions of procedural families, scored by the library.

Also in this file: families of reasoning-gym: their options and levels, checked, and their questions.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping
from dataclasses import fields, replace
from functools import cached_property
from typing import Any

from reasoning_gym.factory import CURRICULA, DATASETS
from reasoning_gym.utils import SYSTEM_PROMPTS, extract_answer

from rlcore.config import evolve
from rlcore.errors import ConfigError
from rlcore.protocols import Step, Turn
from rlcore.types import Row
from rlcore_environments.openings import SeedFactory, near_names, seeds_of
from rlcore_environments.reasoning_gym.config import FamilyOptions, ReasoningGymConfig

WHERE = "data.environment.families"
LARGEST_SEED = 2**32
"""The library takes seeds below this number."""


def make_dataset(name: str, level: int | None, options: Mapping[str, object], seed: int) -> Any:
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


STRIDE = 2**26
"""Distance of the seeds of two questions of one episode; the seeds of rows are below it."""
MOST_DRAWS = 100
"""Seeds that are tried for one question."""


class Questions:
    """One episode: one or several questions of a family, each answered in a turn (`rlcore.protocols.Environment`).

    Args:
        factory: the factory that made it.
    """

    def __init__(self, factory: ReasoningGym) -> None:
        self._factory, self._left = factory, 0
        self._scores: list[float] = []

    def reset(self, row: Row, *, seed: int) -> str:
        """Return the first question; a row may name its `family` and `level`, else both are drawn with the seed."""
        named = {key: row[key] for key in ("family", "level") if row.get(key) is not None}
        if named.get("family", "") not in ("", *self._factory.families):
            raise ValueError(f"the row names the family {named['family']!r}, which is not in {WHERE}")
        self._row, self._left = {**self._factory.row(seed), **named}, self._factory.config.questions
        is_held_out = seed in seeds_of("eval", self._factory.config)
        self._refused = frozenset[str]() if is_held_out else self._factory.held_out
        self._ask()
        return "\n\n".join(filter(None, [self._factory.instructions, self._entry["question"]]))

    def step(self, turn: Turn) -> Step:
        """Score an answer, and return the next question if there is one."""
        self._left -= 1
        tag, level = self._factory.config.answer_tag, self._row["level"]
        answer = extract_answer(turn.text, tag) if tag else turn.text.strip()
        score = float(self._dataset.score_answer(answer, self._entry))
        self._scores.append(score)
        info = {"success": min(self._scores) >= 1, "answer": answer, "oracle": self._entry["answer"]}
        text = self._next_question(self._scores[-1]) if self._left else ()
        return Step(
            text, {self._row["family"]: score}, done=not self._left,
            info=info if level is None else {**info, "level": level},
        )  # fmt: skip

    def _next_question(self, score: float) -> str:
        levels = self._factory.families[self._row["family"]].level
        self._row["seed"] += STRIDE
        if isinstance(levels, tuple):
            self._row["level"] = min(max(self._row["level"] + (1 if score >= 1 else -1), levels[0]), levels[1])
        self._ask()
        return f"{'Right' if score >= 1 else 'Wrong'}. The next question:\n\n{self._entry['question']}"

    def _ask(self) -> None:
        """Make the question of the row; one to train on that is also one to evaluate on gives way to another seed's."""
        for _ in range(MOST_DRAWS):
            self._entry, self._dataset = self._factory.question(self._row)
            if self._entry["question"] not in self._refused:
                return
            self._row["seed"] += 1
        raise ValueError(f"{WHERE}: {MOST_DRAWS} questions to train on are also ones to evaluate on; lower eval_rows")


class ReasoningGym(SeedFactory):
    """A factory of episodes with the tasks of reasoning-gym.

    Args:
        config: its options.

    Raises:
        ConfigError: a family, an option of a family or a level is unknown to the library.
    """

    episode = Questions

    def __init__(self, config: ReasoningGymConfig) -> None:
        named = config.families
        listed = [named] if isinstance(named, str) else list(named)
        given = named if isinstance(named, Mapping) else {name: FamilyOptions() for name in listed}
        super().__init__(config)
        self.max_turns = config.questions
        self.families = {name: checked_family(name, options, config.level) for name, options in given.items()}
        self.instructions = SYSTEM_PROMPTS.get(config.instructions or "", config.instructions or "").strip()

    def rows(self, split: str) -> list[dict[str, Any]] | None:
        """Return the rows of a split, without those to train on whose first question is also one to evaluate on.

        Raises:
            ConfigError: none is left to train on.
        """
        if split == "eval":
            return [self.row(seed) for seed in seeds_of("eval", self.config)] or None
        rows = [self.row(seed) for seed in seeds_of("train", self.config)]
        found = [row for row in rows if self.question(row)[0]["question"] not in self.held_out]
        if not found:
            raise ConfigError(f"{WHERE}: every question to train on is also one to evaluate on; lower eval_rows")
        return found

    @cached_property
    def held_out(self) -> frozenset[str]:
        """All questions of the evaluation: those of later turns too, at every level that they can have."""
        rows = [self.row(seed) for seed in seeds_of("eval", self.config)]
        return frozenset(
            self.question({**row, "seed": row["seed"] + index * STRIDE, "level": level})[0]["question"]
            for row in rows for index in range(self.config.questions) for level in self._levels(row, index)
        )  # fmt: skip

    def _levels(self, row: Row, index: int) -> Iterable[int | None]:
        levels, level = self.families[row["family"]].level, row["level"]
        if not isinstance(levels, tuple):
            return [level]
        return range(max(levels[0], level - index), min(levels[1], level + index) + 1)

    def row(self, seed: int) -> dict[str, Any]:
        """Return the row of a seed: its family and level are drawn with it."""
        draw = random.Random(seed)  # noqa: S311  no secret
        (family,) = draw.choices(list(self.families), [options.weight for options in self.families.values()])
        level = self.families[family].level
        return {"seed": seed, "family": family, "level": draw.randint(*level) if isinstance(level, tuple) else level}

    def question(self, row: Row) -> tuple[dict[str, Any], Any]:
        """Return the question of a row, and the library's dataset that scores answers to it."""
        options = self.families[row["family"]].options
        dataset = make_dataset(row["family"], row["level"], options, row["seed"])
        return dataset[0], dataset
