"""Laws of optimizers, checked on a matrix and a vector with a quadratic loss."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from rlcore.checkpoints.state import load_state, save_state
from rlcore.optim.optimization import Optimizers, parameters_of
from rlcore.settings import OptimizerConfig
from rlcore.sharding import load_optimizer
from rlcore_testing.law import Subject, law, require

OPTIMIZERS = "optimizers"
SHAPES = ((80, 64), (64,))
LR = 0.01
STEPS = 8
STATE_ADVICE = "keep all state that a step depends on in `state` and `param_groups`, as numbers, lists and tensors"


@law(OPTIMIZERS)
def parameter_groups_are_kept(subject: Subject) -> None:
    """The optimizer keeps the parameter groups in order, with the default `lr` and each group's `weight_decay`."""
    parameters = _parameters()
    optimizer = _build(subject, parameters)
    groups = [[id(each) for each in group["params"]] for group in optimizer.param_groups]
    require(
        groups == [[id(each)] for each in parameters],
        "its param_groups differ from the groups it was built with; pass the groups on to torch.optim.Optimizer",
    )
    rates = [group.get("lr") for group in optimizer.param_groups]
    require(
        rates == [LR, LR], f"its groups should have lr = {LR}; they have {rates}; make `lr` a default of the optimizer"
    )
    decay = optimizer.param_groups[1].get("weight_decay")
    require(decay == 0.0, f"the second group should keep weight_decay = 0.0; it has {decay}; keep options of groups")


@law(OPTIMIZERS)
def steps_lower_a_convex_loss(subject: Subject) -> None:
    """A few steps with a learning rate of 0.01 decrease a quadratic loss.

    Parameters in bfloat16 stay so after a step, unless the optimizer raises an error for them.
    """
    parameters = _parameters()
    optimizer, before = _build(subject, parameters), _loss(parameters).item()
    _step(optimizer, parameters, STEPS)
    after = _loss(parameters).item()
    require(
        after < before,
        f"the loss should fall from {before:.6g} in {STEPS} steps; it is {after:.6g}; step against the gradient, "
        "in proportion to lr",
    )
    parameters = [torch.nn.Parameter(each.detach().bfloat16()) for each in _parameters()]
    try:
        _step(_build(subject, parameters), parameters, 1)
    except (RuntimeError, TypeError, ValueError):  # such as torch's for decompositions, which need float32
        return
    kinds = {each.dtype for each in parameters}
    require(kinds == {torch.bfloat16}, f"parameters in bfloat16 should stay so; they are {kinds}; change them in place")


@law(OPTIMIZERS)
def a_learning_rate_of_zero_changes_nothing(subject: Subject) -> None:
    """A step uses the current `lr` of each group, which schedules set: with `lr` 0 no parameter of it changes."""
    for which in (0, 1):
        parameters = _parameters()
        optimizer = _build(subject, parameters)
        _step(optimizer, parameters, 3)
        optimizer.param_groups[which]["lr"] = 0.0
        was, now = _copies(parameters)[which], parameters[which]
        _step(optimizer, parameters, 3)
        moved = float((now.detach() - was).abs().max())
        require(
            torch.equal(now.detach(), was),
            f"with lr = 0 in its group a parameter of shape {list(SHAPES[which])} should not change; it changes by "
            f"{moved:.1e}; read group['lr'] at each step",
        )


def _decays(subject: Subject) -> bool:
    """Return whether it takes `weight_decay`."""
    takes = parameters_of(Optimizers().get(_config(subject)).optimizer)
    return takes is None or "weight_decay" in takes


@law(OPTIMIZERS, when=_decays)
def weight_decay_is_read_from_each_group(subject: Subject) -> None:
    """With zero gradients, weight decay shrinks the matrix and not the vector, whose group has `weight_decay` 0."""
    parameters = _parameters()
    optimizer = _build(subject, parameters, weight_decay=0.5)
    before = _copies(parameters)
    for _ in range(3):
        for parameter in parameters:
            parameter.grad = torch.zeros_like(parameter)
        optimizer.step()
    matrix, vector = parameters
    require(
        float(matrix.detach().norm()) < float(before[0].norm()),
        "with weight_decay = 0.5 and gradients of 0 the matrix should shrink; it does not; read group['weight_decay']",
    )
    require(
        torch.equal(vector.detach(), before[1]),
        "the vector's group has weight_decay = 0, but the vector changed; read group['weight_decay'], not the default",
    )


@law(OPTIMIZERS)
def without_a_gradient_nothing_changes(subject: Subject) -> None:
    """A parameter whose gradient is None does not change, and changes when it gets a gradient."""
    matrix, vector = parameters = _parameters()
    optimizer, before = _build(subject, parameters), vector.detach().clone()
    _step(optimizer, [matrix], 2)
    require(
        torch.equal(vector.detach(), before),
        "a parameter without a gradient changed; skip parameters whose grad is None",
    )
    _step(optimizer, parameters, 2)
    require(
        not torch.equal(vector.detach(), before),
        "a parameter that had no gradient at first does not change when it gets one; create its state then",
    )


@law(OPTIMIZERS)
def a_state_continues(subject: Subject) -> None:
    """Saving the state, loading it into a new optimizer and continuing gives the bit-identical parameters."""
    whole = _parameters()
    optimizer = _build(subject, whole)
    _step(optimizer, whole, STEPS // 2)
    with tempfile.TemporaryDirectory(prefix="rlcore-law-") as folder:
        save_state(Path(folder) / "state", optimizer.state_dict())
        random, parted = torch.get_rng_state(), [torch.nn.Parameter(each) for each in _copies(whole)]
        _step(optimizer, whole, STEPS // 2)
        again = _build(subject, parted)
        load_optimizer(again, load_state(Path(folder) / "state"))
    torch.set_rng_state(random)
    _step(again, parted, STEPS // 2)
    for shape, one, other in zip(SHAPES, whole, parted, strict=True):
        off = float((one.detach() - other.detach()).abs().max())
        require(
            torch.equal(one, other),
            f"after loading a state a parameter of shape {list(shape)} is off by {off:.1e} from uninterrupted steps; "
            f"{STATE_ADVICE}",
        )


def _config(subject: Subject, **changes: Any) -> OptimizerConfig:
    return OptimizerConfig(name=subject.it.qualified, options=dict(subject.options), lr=LR, **changes)


def _build(subject: Subject, parameters: Sequence[torch.nn.Parameter], **changes: object) -> Optimizer:
    """Build the optimizer under test as a run does."""
    matrix, vector = parameters
    groups: list[dict[str, object]] = [{"params": [matrix]}, {"params": [vector], "weight_decay": 0.0}]
    return Optimizers().get(_config(subject, **changes)).build(groups)


def _parameters() -> list[torch.nn.Parameter]:
    generator = torch.Generator().manual_seed(0)
    return [torch.nn.Parameter(torch.randn(shape, generator=generator)) for shape in SHAPES]


def _copies(parameters: Sequence[Tensor]) -> list[Tensor]:
    return [each.detach().clone() for each in parameters]


def _loss(parameters: Sequence[Tensor]) -> Tensor:
    """Return half the squared distance to a target; its gradient differs between entries and between steps."""
    targets = (torch.linspace(-3, 3, each.numel()).view(each.shape) for each in parameters)
    pairs = zip(parameters, targets, strict=True)
    return torch.stack([(each - target).pow(2).sum() / 2 for each, target in pairs]).sum()


def _step(optimizer: Optimizer, parameters: Sequence[Tensor], count: int) -> None:
    """Make `count` steps with gradients for `parameters` only."""
    for _ in range(count):
        optimizer.zero_grad()
        _loss(parameters).backward()
        optimizer.step()
