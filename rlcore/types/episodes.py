"""Trajectories of episodes with an environment, as a sampler of episodes returns them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import attrs

from rlcore.types.trajectories import Trajectories


@attrs.frozen(eq=False)
class Episodes(Trajectories):
    """B trajectories of several turns, with what was said and how each of them ended.

    The policy chose the tokens of its turns; the environment's are between them. The column `rewards` has the reward of
    each turn at its last chosen token. `rows`, `each` and `split` return plain trajectories.

    Attributes:
        outputs: B texts after the prompts, of both speakers.
        arguments: B values of each further argument of reward functions, such as `turns`.
        numbers: B values of each metric, such as `episode/turns`; None where it has none.
        failures: B texts, why an episode failed; empty if it did not. Failed episodes have no score.
    """

    outputs: Sequence[str] = ()
    arguments: Mapping[str, Sequence[Any]] = attrs.field(factory=dict)
    numbers: Mapping[str, Sequence[float | None]] = attrs.field(factory=dict)
    failures: Sequence[str] = ()

    @property
    def plain(self) -> Trajectories:
        """The trajectories alone."""
        return self.each(lambda array: array)
