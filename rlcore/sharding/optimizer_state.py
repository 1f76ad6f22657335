"""Restore the exact state of an optimizer."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.optim import Optimizer


def load_optimizer(optimizer: Optimizer, saved: dict[str, Any]) -> None:
    """Restore the exact state of an optimizer.

    Torch casts loaded tensors to the type of their parameters. Tensors that an optimizer keeps in another type, such as
    moments in 32 bits, are put back in that type.
    """
    optimizer.load_state_dict(saved)
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    for index, kept in saved["state"].items():
        for name, value in kept.items() if isinstance(kept, dict) and isinstance(index, int) else ():
            loaded = optimizer.state[parameters[index]].get(name)
            if isinstance(loaded, Tensor) and isinstance(value, Tensor) and loaded.dtype != value.dtype:
                optimizer.state[parameters[index]][name] = value.to(loaded.device)
