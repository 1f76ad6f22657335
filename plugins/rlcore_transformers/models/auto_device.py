"""The device of a model that is not the policy, such as a reward model or a teacher."""

from __future__ import annotations

import os

import torch

from rlcore.errors import ConfigError


def device_named(name: str, option: str) -> torch.device:
    """Return the device of a name; `auto` is the accelerator of this process, or the CPU where runs use it too.

    Args:
        name: a device of torch, or `auto`.
        option: the option that holds it, for the error.

    Raises:
        ConfigError: it is no device.
    """
    if name != "auto":
        try:
            return torch.device(name)
        except RuntimeError as error:
            raise ConfigError(f"{option} = {name!r}: is no device of torch; give cpu or cuda:0") from error
    if os.environ.get("ACCELERATE_USE_CPU") or not torch.accelerator.is_available():
        return torch.device("cpu")
    kind = torch.accelerator.current_accelerator()
    if kind is None or kind.type == "mps":  # on which no run is either (docs/gpus.md)
        return torch.device("cpu")
    return torch.device(kind.type, int(os.environ.get("LOCAL_RANK", "0")))
