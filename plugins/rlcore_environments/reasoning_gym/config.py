"""Options of the environment `reasoning_gym`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from rlcore.config import config, option
from rlcore.errors import ConfigError
from rlcore_environments.options import SeedOptions


def _check_levels(level: int | tuple[int, int] | None, what: str) -> None:
    if isinstance(level, tuple) and level[0] > level[1]:
        raise ConfigError(f"{what} = {list(level)}: the first level of a range must not be above the last one")


@config
class FamilyOptions:
    """Options of one family of a mixture."""

    weight: float = option(1.0, "share of the family among the tasks, relative to the other weights", gt=0)
    level: int | tuple[int, int] | None = option(
        None, "level of difficulty of this family, or a range [first, last]; default: the option `level` of all", ge=0
    )
    options: Mapping[str, Any] = option(
        attrs.Factory(dict),
        "options of the family's dataset, such as {max_terms: 3}; they take precedence over a level",
    )

    def __attrs_post_init__(self) -> None:
        """Check the range of levels."""
        _check_levels(self.level, "level")


@config
class ReasoningGymConfig(SeedOptions):
    """Options of the environment `reasoning_gym`."""

    families: str | tuple[str, ...] | Mapping[str, FamilyOptions] = option(
        attrs.NOTHING, "a family of tasks, such as chain_sum, a list of families, or a mapping of families to their "
        "options `weight`, `level` and `options`",
    )  # fmt: skip
    level: int | tuple[int, int] | None = option(
        None, "level of each family's curriculum, or a range [first, last] that tasks are spread over; default: the "
        "library's default options", ge=0,
    )  # fmt: skip
    questions: int = option(
        1, "questions of an episode; with a range of levels, the next one is a level higher after a right answer and a "
        "level lower after a wrong one", ge=1, le=32,
    )  # fmt: skip
    instructions: str | None = option(
        "default", "text before the first question, or the name of one of the library's: default, simple, direct, "
        "chain_of_draft, DeepSeekZero; null: none",
    )  # fmt: skip
    answer_tag: str | None = option(
        "answer", "the answer is the text in the last pair of these tags; null: the whole turn is the answer"
    )

    def __attrs_post_init__(self) -> None:
        """Check the range of levels, and that there is a family."""
        _check_levels(self.level, "level")
        if not self.families:
            raise ConfigError(f"families = {self.families!r}: must name at least one family, such as chain_sum")
