"""Bring arrays to the device that computes without waiting for them to arrive."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor


def sent(array: Tensor, device: torch.device | str) -> Tensor:
    """Return `array` on `device`.

    From the host to a GPU it is copied by way of pinned memory while the program goes on; what uses it there waits. No
    other copy may run ahead: the host would read what has not arrived yet.
    """
    if array.device.type == "cpu" and torch.device(device).type == "cuda":
        return array.pin_memory().to(device, non_blocking=True)
    return array.to(device)


def tensor_on(device: torch.device | str, numbers: Sequence[Any], dtype: torch.dtype = torch.long) -> Tensor:
    """Make a tensor of numbers, or of rows of them, on `device`; `torch.tensor(..., device=...)` would wait for it."""
    return sent(torch.tensor(numbers, dtype=dtype), device)
