"""One bad number, such as NaN, put into what a trainer computes with."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import attrs
import torch
from torch import Tensor, nn

from rlcore.types import PolicyOutputs, Trajectories

PLACES = (
    "reward", "gradient", "activation", "logprobs", "old_logprobs", "ref_logprobs", "values", "heads", "scores",
)  # fmt: skip
"""Where the number is put: into the reward of one output, the gradient of one weight, the output of the module of this
weight in a forward pass with gradients, or into what a policy returns for one token. `old_logprobs` are those of
`policy.score` without gradients, `ref_logprobs` those of `policy.reference_score`, from which trainers compute a KL;
`heads` are the first outputs of the heads that an algorithm brought, `scores` those of a scorer."""
VALUES = (math.nan, math.inf, -math.inf, 1e30)


@attrs.define(eq=False)
class Spoiler:
    """Puts a number into one place, in every call on one rank.

    Attributes:
        place: one of PLACES.
        value: the number.
        rank: the rank on which it is put there.
        count: how often this has happened.
    """

    place: str
    value: float
    rank: int = 0
    count: int = 0

    def spoil(self, policy: Any) -> None:
        """Wrap the methods of a policy or scorer whose outputs contain the place."""
        for method in ("score", "reference_score"):
            called = getattr(policy, method, None)
            if called is not None and (self.place == "ref_logprobs") == (method == "reference_score"):
                setattr(policy, method, self._wrap(called))

    def watch(self, module: nn.Module) -> None:
        """Put the number into the gradient of the first weight that is trained, or into the output of its module."""
        first = next(weight for weight in module.parameters() if weight.requires_grad)
        if self.place == "gradient":
            first.register_hook(self._spoiled)
        if self.place == "activation":
            owner = next(each for each in module.modules() if any(first is own for own in each.parameters(False)))
            owner.register_forward_hook(self._activation)

    def _activation(self, _module: nn.Module, _inputs: Any, outputs: Any) -> Any:
        is_trained = torch.is_grad_enabled() and isinstance(outputs, Tensor)
        return self._spoiled(outputs) if is_trained else outputs

    def rewards(self, given: dict[str, Any]) -> dict[str, Any]:
        """Return the inputs of a run with the number as the first reward of every call, or of all samples."""
        if self.place != "reward":
            return given
        if "reward_fn" in given:
            return given | {"reward_fn": self._reward}
        if "rewards" in given:
            self.count += 1
            return given | {"rewards": [self.value, *given["rewards"][1:]]}
        return given

    def _reward(self, batch: Sequence[Any]) -> list[float]:
        self.count += 1
        return [self.value, *(float(i) for i in range(1, len(batch)))]

    def _wrap(self, method: Callable[..., Any]) -> Callable[..., Any]:
        def spoiled(batch: Trajectories, *arguments: Any, **options: Any) -> Any:
            outputs = method(batch, *arguments, **options)
            if isinstance(outputs, Tensor):
                return self._spoiled(outputs) if self.place == "scores" else outputs
            name = self._field()
            if not (isinstance(outputs, PolicyOutputs) and name and bool(batch.action_mask[0].any())):
                return outputs
            at = int(batch.action_mask[0].nonzero()[0, 0])
            found: Any = getattr(outputs, name)
            if not isinstance(found, Mapping):
                changes: dict[str, Any] = {} if found is None else {name: self._at(found, at)}
                return attrs.evolve(outputs, **changes)
            first = next(iter(found), None)
            changed = {} if first is None else {first: self._at(found[first], at)}
            return attrs.evolve(outputs, heads={**found, **changed})

        return spoiled

    def _at(self, found: Tensor, column: int) -> Tensor:
        """Return outputs with the number at a token of the first sequence."""
        self.count += 1
        added = torch.zeros_like(found)
        added[..., 0, column] = self.value
        return found + added

    def _field(self) -> str:
        """Return the field of the outputs of the present call that contains the place; "" if none does."""
        if self.place == "logprobs":
            return "logprobs" if torch.is_grad_enabled() else ""
        if self.place == "old_logprobs":
            return "" if torch.is_grad_enabled() else "logprobs"
        return {"ref_logprobs": "logprobs", "values": "values", "heads": "heads"}.get(self.place, "")

    def _spoiled(self, numbers: Tensor) -> Tensor:
        self.count += 1
        added = torch.zeros_like(numbers)
        added.view(-1)[0] = self.value
        return numbers + added
