"""Weights that stage 3 of ZeRO divides one after another, so that no process has all of them in memory at once."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from rlcore.ranks import Ranks
from rlcore_shard.divisible import DivisibleLearner

__all__ = ["divide", "part_of", "set_aside", "start_dtypes"]


def start_dtypes(learner: DivisibleLearner) -> dict[int, torch.dtype]:
    """Return the dtypes that weights shall have which are still as in their files, by the id of the parameter."""
    found: dict[int, torch.dtype] = getattr(learner, "start_dtypes", dict)()
    return found


def set_aside(learner: DivisibleLearner, trained: nn.Module, device: torch.device) -> dict[nn.Parameter, Tensor]:
    """Return the weights that are still as in their files, by parameter of `trained`; `divide` brings them back.

    Until then a parameter has its shape and dtype, by which optimizers group it, and memory of one element.
    """
    start, found = start_dtypes(learner), dict[nn.Parameter, Tensor]()
    for weight, like in zip(trained.parameters(), learner.module.parameters(), strict=True):
        if (dtype := start.get(id(like))) is not None:
            found[weight] = weight.data
            weight.data = torch.zeros((), dtype=dtype, device=device).expand(weight.shape)
    return found


def divide(deepspeed: Any, weights: Mapping[nn.Parameter, Tensor], options: Mapping[str, Any]) -> None:
    """Convert one weight after another, of which DeepSpeed then leaves this process its part; collective.

    Args:
        deepspeed: the package.
        weights: what `set_aside` returned.
        options: DeepSpeed's configuration.
    """
    first: Any = None
    for weight, in_file in weights.items():
        weight.data = in_file.to(weight.device, weight.dtype, copy=True)
        if first is None:
            first = weight
            deepspeed.zero.Init(module=nn.ParameterList([weight]), config_dict_or_path=dict(options))
        else:
            first.convert_to_zero_parameters([weight])


def part_of(whole: Tensor, ranks: Ranks, dtype: torch.dtype | None = None) -> Tensor:
    """Return this process's part of a tensor, which is padded to equal parts, converted to a dtype."""
    size = -(-whole.numel() // ranks.world)
    mine = whole.detach().flatten()[ranks.rank * size :][:size]
    part = torch.zeros(size, dtype=dtype or whole.dtype, device=ranks.device if dtype else whole.device)
    part[: mine.numel()] = mine
    return part
