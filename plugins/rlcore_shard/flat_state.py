"""The state of an optimizer that steps parts of concatenated parameters, as the state of an optimizer of whole ones."""

from __future__ import annotations

from typing import Any

import attrs
import torch
from torch import Tensor
from torch.optim import Optimizer

from rlcore.errors import CheckpointError
from rlcore.ranks import Ranks
from rlcore.sharding.whole import load_optimizer

TOGETHER = "of which DeepSpeed steps several together: resume with run.shard=fsdp or none"


@attrs.frozen(eq=False)
class Fragment:
    """What this process keeps of one parameter: consecutive elements of a flat tensor that its optimizer steps.

    Attributes:
        flat: the tensor, which holds elements of several parameters.
        shape: that of the whole parameter.
        start: index in `flat` of the first element.
        offset: index in the whole parameter of the first element.
        size: the number of elements.
    """

    flat: Tensor
    shape: torch.Size
    start: int = 0
    offset: int = 0
    size: int = 0

    def read(self, flat: Tensor, whole: Tensor) -> None:
        """Copy the elements of `flat`, which has the shape of the flat tensor, into a whole one."""
        whole.view(-1)[self.offset :][: self.size] = flat[self.start :][: self.size].to(whole.device)

    def write(self, whole: Tensor, flat: Tensor) -> None:
        """Copy the elements of a whole tensor into `flat`."""
        flat[self.start :][: self.size] = whole.reshape(-1)[self.offset :][: self.size].to(flat)


def gather_state(optimizer: Optimizer, groups: list[list[Fragment]], ranks: Ranks) -> dict[str, Any]:
    """Return the state that an optimizer of whole parameters would have, on rank 0; collective.

    Args:
        optimizer: steps the flat tensors.
        groups: the fragments of each of its groups of parameters.
        ranks: this process's place among the others; others than rank 0 return empty tensors.
    """

    def whole(fragment: Fragment, value: Any) -> Any:
        if not isinstance(value, Tensor) or value.shape != fragment.flat.shape:
            return value
        joined = torch.zeros(fragment.shape, dtype=value.dtype, device=ranks.device)
        fragment.read(value, joined)
        if ranks.world > 1:
            torch.distributed.reduce(joined, 0)  # elements of other processes are 0 here
        return joined.cpu() if ranks.is_main else torch.empty(0, dtype=value.dtype)

    state, numbered, index = {}, [], 0
    for group, fragments in zip(optimizer.param_groups, groups, strict=True):
        for number, fragment in enumerate(fragments, index):
            if kept := optimizer.state.get(fragment.flat):
                state[number] = {name: whole(fragment, value) for name, value in kept.items()}
        numbered.append({**group, "params": list(range(index, index + len(fragments)))})
        index += len(fragments)
    return {"state": state, "param_groups": numbered}


def load_state(optimizer: Optimizer, groups: list[list[Fragment]], saved: dict[str, Any]) -> None:
    """Restore a state of whole parameters, of which the optimizer keeps what its flat tensors hold.

    Raises:
        CheckpointError: the parameters of a flat tensor have made different numbers of steps.
    """
    flats = [list({id(each.flat): each.flat for each in fragments}.values()) for fragments in groups]
    numbers = {id(flat): number for number, flat in enumerate(flat for group in flats for flat in group)}
    state: dict[int, dict[str, Any]] = {}
    for number, fragment in enumerate(each for group in groups for each in group):
        kept, first = saved["state"].get(number, {}), numbers[id(fragment.flat)] not in state
        own = state.setdefault(numbers[id(fragment.flat)], {})
        if not first and bool(kept) != bool(own):
            raise CheckpointError(f"optimizer state is missing of parameters that have made no step, {TOGETHER}")
        for name, value in kept.items():
            if name != "step" and isinstance(value, Tensor) and value.shape == fragment.shape:
                own.setdefault(name, torch.zeros_like(fragment.flat, dtype=value.dtype, requires_grad=False))
                fragment.write(value, own[name])
            elif bool(own.setdefault(name, value) != value):
                raise CheckpointError(
                    f"optimizer state '{name}' differs between parameters ({own[name]} and {value}), {TOGETHER}"
                )
    options = [
        {**group, "params": [numbers[id(flat)] for flat in held]}
        for group, held in zip(saved["param_groups"], flats, strict=True)
    ]
    own_groups = [group["params"] for group in optimizer.param_groups]
    _set_parameters(optimizer, flats)
    load_optimizer(optimizer, {"state": {key: own for key, own in state.items() if own}, "param_groups": options})
    _set_parameters(optimizer, own_groups)


def _set_parameters(optimizer: Optimizer, parameters: list[list[Any]]) -> None:
    for group, held in zip(optimizer.param_groups, parameters, strict=True):
        group["params"] = held
