"""What strategies that divide a model have in common: what they refuse, how they run and step, and a process group."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, ClassVar, Protocol

import torch
from torch import Tensor, nn
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


def copy_of(learner: DivisibleLearner, *, every_block: bool = False) -> nn.Module:
    """Return a copy of a learner's module, whose parameters are divided next; they are in the same memory until then.

    Args:
        learner: the learner, whose tied weights stay tied.
        every_block: see `rlcore.protocols.Divisible.lockstep_copy`.
    """
    own = {id(each): nn.Parameter(each.data, requires_grad=each.requires_grad) for each in learner.module.parameters()}
    return learner.lockstep_copy(own, every_block=every_block)


def run_divided(learner: DivisibleLearner, trained: nn.Module, run: Callable[..., Any], ranks: Ranks) -> None:
    """Let a learner run its own module without gradients, on whole weights, and divided ones with gradients.

    Called once the learner knows its shards (`use_shards`): weights that are still as in their files are read here.

    Args:
        learner: the learner.
        trained: the divided module, which gets the modes of the own one.
        run: calls the divided module.
        ranks: this process's place among the others.
    """

    def forward(*args: Any, **options: Any) -> Any:
        if not torch.is_grad_enabled():
            learner.gather()
            return learner.module(*args, **options)
        for part, mode in zip(trained.modules(), learner.module.modules(), strict=True):
            part.training = mode.training
        return run(*args, **options)

    learner.use_forward(forward, autocast=ranks.accelerator.autocast if ranks.mixed_precision != "no" else nullcontext)


class StepsParts(ABC):
    """Steps the parts of weights that this process keeps: what `fsdp` and `tp` have in common."""

    name: ClassVar[str]
    was_skipped = False
    _learner: DivisibleLearner

    def drive(self, optimizer: Optimizer) -> Any:
        """Return the optimizer.

        Raises:
            ConfigError: it reads whole tensors, as one with factorised or 8-bit moments does.
        """
        check_optimizer(optimizer, self.name)
        self.optimizer = optimizer
        return optimizer

    def step(self, max_norm: float) -> Tensor | None:
        """Clip, step and clear the gradients; a gradient whose norm is not finite makes no step."""
        norm = self._clip(max_norm)
        self.was_skipped = not bool(norm.isfinite())
        if not self.was_skipped:
            self.optimizer.step()
        self._learner.drop()
        self.discard()
        return norm if max_norm else None

    def discard(self) -> None:
        """Clear the gradients."""
        self.optimizer.zero_grad()

    @abstractmethod
    def _clip(self, max_norm: float) -> Tensor:
        """Clip the gradient to a norm, if it is not 0; return the norm before, that of all parts on all processes."""


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
