"""A policy wrapper that times scoring, for any architecture."""

from __future__ import annotations

import copy
from typing import Any

import torch

from rlcore.profiling import count_tokens, phase
from rlcore.types import PolicyOutputs, Trajectories
from rlcore_profile.recorder import NOTHING


class TimedPolicy:
    """A policy whose calls of `score` and `reference_score` are marked as phases.

    With gradients enabled, a call counts as the phase `forward` within `update`; without gradients, as the phase
    `score`. The cost is negligible while no profile is recorded.

    Reading, setting and deleting attributes, and `isinstance`, act on the wrapped policy. A copy wraps a copy of the
    policy, with separate weights.

    Args:
        policy: the policy that an architecture built (`rlcore.protocols.Policy`).
    """

    __slots__ = ("__wrapped__",)

    def __init__(self, policy: Any) -> None:
        object.__setattr__(self, "__wrapped__", policy)

    def score(self, batch: Trajectories, **options: Any) -> PolicyOutputs:
        """Return the policy's outputs for `batch`."""
        has_gradients = torch.is_grad_enabled()
        with phase("update" if has_gradients else "score"):
            count_tokens(batch.mask)
            with phase("forward") if has_gradients else NOTHING:
                outputs: PolicyOutputs = self.__wrapped__.score(batch, **options)
        return outputs

    def reference_score(self, batch: Trajectories, **options: Any) -> PolicyOutputs:
        """Return the reference's outputs for `batch`."""
        with phase("score"):
            count_tokens(batch.mask)
            outputs: PolicyOutputs = self.__wrapped__.reference_score(batch, **options)
        return outputs

    @property  # type: ignore[misc]  # read-only; makes `isinstance` see the wrapped class
    def __class__(self) -> Any:
        return type(self.__wrapped__)

    def __getattr__(self, name: str) -> Any:
        if name == "__wrapped__":  # raised during unpickling, before __init__
            raise AttributeError(name)
        return getattr(self.__wrapped__, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.__wrapped__, name, value)

    def __delattr__(self, name: str) -> None:
        delattr(self.__wrapped__, name)

    def __dir__(self) -> list[str]:
        return dir(self.__wrapped__)

    def __repr__(self) -> str:
        return repr(self.__wrapped__)

    def __copy__(self) -> TimedPolicy:
        return TimedPolicy(copy.copy(self.__wrapped__))

    def __deepcopy__(self, memo: dict[int, Any]) -> TimedPolicy:
        return TimedPolicy(copy.deepcopy(self.__wrapped__, memo))

    def __reduce__(self) -> tuple[Any, ...]:
        return TimedPolicy, (self.__wrapped__,)
