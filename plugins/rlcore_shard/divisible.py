"""What strategies that divide a model have in common: what they refuse, how they run and step, and a process group.

Also in this file: the state of an optimizer that steps parts of concatenated parameters, as the state of an optimizer
of whole ones.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any, ClassVar, Protocol

import attrs
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from rlcore.errors import CheckpointError, ConfigError, ModelError
from rlcore.protocols import Divisible, Learner
from rlcore.ranks import Ranks
from rlcore.sharding import load_optimizer
from rlcore.types import State

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


def run_divided(learner: DivisibleLearner, trained: nn.Module, run: Callable[..., object], ranks: Ranks) -> None:
    """Let a learner run its own module without gradients, on whole weights, and divided ones with gradients.

    Called once the learner knows its shards (`use_shards`): weights that are still as in their files are read here.

    Args:
        learner: the learner.
        trained: the divided module, which gets the modes of the own one.
        run: calls the divided module.
        ranks: this process's place among the others.
    """

    def forward(*args: object, **options: object) -> Any:
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

    def whole(fragment: Fragment, value: object) -> Any:
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
    state: dict[int, State] = {}
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
