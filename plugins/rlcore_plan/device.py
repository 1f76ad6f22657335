"""How much memory this machine's device has."""

from __future__ import annotations

import torch

from rlcore.cli import machine
from rlcore.errors import ConfigError


def device_memory(kind: str) -> tuple[int, str]:
    """Return the bytes of the device a run would use, and where that is known from.

    Raises:
        ConfigError: nothing tells.
    """
    if kind == "cuda":
        return int(torch.cuda.get_device_properties(0).total_memory), f"on {torch.cuda.get_device_name(0)}"
    found = machine.memory()
    if kind != "cpu" or found is None:
        raise ConfigError(f"the memory of this machine's device ({kind}) is not known: give --device-memory, as 24GB")
    return found["total"], "in this machine"
