"""What strategies that divide a model have in common: what they refuse, and the process group of a single process."""

from __future__ import annotations

from typing import Protocol

import torch
from torch.optim import Optimizer

from rlcore.errors import ConfigError, ModelError
from rlcore.protocols import Divisible, Learner
from rlcore.ranks import Ranks

WHOLE_TENSORS = ("bitsandbytes", "transformers.optimization")
"""Modules of optimizers that read whole tensors."""
OF_TORCH = ("Adafactor", "LBFGS", "Muon")
"""Optimizers in `torch.optim` that do."""


class DivisibleLearner(Divisible, Learner, Protocol):
    """A learner that can be divided."""


def divisible(policy: Learner, strategy: str) -> DivisibleLearner:
    """Return the learner if its model can be divided.

    Args:
        policy: the learner.
        strategy: value of `run.shard`.

    Raises:
        ModelError: it cannot.
    """
    if not isinstance(policy, Divisible):
        raise ModelError(
            f"run.shard = '{strategy}': {type(policy).__name__} does not implement rlcore.protocols.Divisible, so how "
            "to divide it is unknown: set run.shard=none, which keeps the whole model on every process"
        )
    policy.check_divisible(strategy)
    return policy


def check_optimizer(optimizer: Optimizer, strategy: str) -> None:
    """Check that an optimizer computes the same from parts of tensors.

    Args:
        optimizer: the optimizer.
        strategy: value of `run.shard`.

    Raises:
        ConfigError: it reads whole tensors, as Muon and one with factorised or 8-bit moments do.
    """
    whole = tuple(getattr(torch.optim, name) for name in OF_TORCH if hasattr(torch.optim, name))
    if isinstance(optimizer, whole) or type(optimizer).__module__.startswith(WHOLE_TENSORS):
        raise ConfigError(
            f"run.shard = '{strategy}': {type(optimizer).__name__} needs whole weights and gradients, of which each "
            "process has a part: choose an optimizer of torch, such as adamw, or run.shard=none"
        )


def open_process_group(ranks: Ranks) -> None:
    """Open the process group of a process that runs alone; several processes have theirs from the start."""
    if not torch.distributed.is_initialized():
        store = torch.distributed.HashStore()  # type: ignore[attr-defined]
        backend = torch.distributed.get_default_backend_for_device(ranks.device)
        torch.distributed.init_process_group(backend, store=store, rank=0, world_size=1)
