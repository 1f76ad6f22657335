"""Time what a policy scores, whoever wrote it."""

from __future__ import annotations

from typing import Any

import torch

from rlcore.logging import get_logger
from rlcore.profiling import NOTHING, count_tokens, phase
from rlcore.types import Trajectories


def time_scoring(policy: Any) -> None:
    """Count the calls of a policy's `score` and `reference_score` as phases.

    With gradients it is `forward` in an `update`, the one in progress or one of its own; without, `score`.

    The object stays what it is, for others may hold it already: it gets a class that differs in nothing else, so that
    copies of it score with weights of their own. One that takes none is left alone, which is said.
    """
    cls: Any = type(policy)

    def ask(self: Any, name: str) -> Any:
        try:
            return getattr(super(timed, self), name)
        except AttributeError:  # it stands in for another, and passes on what it is asked for
            return cls.__getattr__(self, name)

    def score(self: Any, batch: Trajectories, **asked: Any) -> Any:
        learns = torch.is_grad_enabled()
        with phase("update" if learns else "score"):
            count_tokens(batch.mask)
            with phase("forward") if learns else NOTHING:
                return ask(self, "score")(batch, **asked)

    def reference_score(self: Any, batch: Trajectories, **asked: Any) -> Any:
        with phase("score"):
            count_tokens(batch.mask)
            return ask(self, "reference_score")(batch, **asked)

    same = {"__slots__": (), "__module__": cls.__module__, "__qualname__": cls.__qualname__, "__doc__": cls.__doc__}
    methods = {"score": score, "reference_score": reference_score}
    try:
        timed: Any = type(cls)(cls.__name__, (cls,), {**same, **methods, "_untimed": cls})
        object.__setattr__(policy, "__class__", timed)
    except (TypeError, AttributeError) as error:
        get_logger("profile").warning(
            "the policy's scoring cannot be timed: it counts as what is around it", policy=cls.__name__,
            reason=str(error),
        )  # fmt: skip


def stop_timing(policy: Any) -> None:
    """Give a policy the class back that it had."""
    untimed = vars(type(policy)).get("_untimed")
    if untimed is not None:
        object.__setattr__(policy, "__class__", untimed)
