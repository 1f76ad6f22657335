"""Noise as large as rounding errors, in the gradients of one of two runs that a law compares up to rounding.

Another processor rounds sums in another order. An optimizer that divides a gradient by its own size, as Adam does with
its default `eps`, makes whole steps of such errors: the bias of attention keys, whose true gradient is zero, has no
other gradient. A comparison that holds with the noise does not depend on the processor.

Also in this file: runs in float64, whatever precision the code of a run names.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

SWITCH = "RLCORE_TESTING_NOISE"
"""Environment variable with the seed of the noise, a whole number above 0; without it there is none."""
SHARE = 1e-7
"""Size of the noise in float32, as a share of the largest gradient of its block; in float64 it is 2**-29 of that."""
BLOCK = re.compile(r".*?\.\d+(?=\.)")
"""Beginning of the name of a parameter in a numbered part of a model, such as `transformer.h.0`."""


def noise_seed() -> int:
    """Return the seed that SWITCH sets; 0 if there is to be no noise."""
    return int(os.environ.get(SWITCH) or 0)


class GradientNoise:
    """Adds noise of either sign to each gradient before every optimizer step; `add` is a pre-hook of optimizers.

    The size is relative to the largest gradient of the parameter's block: a layer, or all that is in no layer.

    Args:
        seed: of the noise; it is the same in all processes.
    """

    def __init__(self, seed: int) -> None:
        self._generator = torch.Generator().manual_seed(seed)
        self._blocks: dict[Tensor, str] = {}

    def watch(self, module: nn.Module) -> None:
        """Take the names of blocks from the module that is trained."""
        named = {weight: BLOCK.match(name) for name, weight in module.named_parameters()}
        self._blocks = {weight: "" if found is None else found[0] for weight, found in named.items()}

    @torch.no_grad()
    def add(self, optimizer: torch.optim.Optimizer, *_: object) -> None:
        """Add noise to the gradients of an optimizer's parameters."""
        trained = [weight for group in optimizer.param_groups for weight in group["params"] if weight.grad is not None]
        largest: dict[str, float] = {}
        for weight in trained:
            block = self._blocks.get(weight, "")
            largest[block] = max(largest.get(block, 0.0), float(weight.grad.abs().max()))
        for weight in trained:
            signs = torch.randint(0, 2, weight.shape, generator=self._generator) * 2 - 1
            share = SHARE * torch.finfo(weight.dtype).eps / torch.finfo(torch.float32).eps
            weight.grad.add_(signs.to(weight.grad), alpha=share * largest[self._blocks.get(weight, "")])


class _Doubled(TorchFunctionMode):
    """Replace float32 by float64 in the arguments of every function of torch, and `Tensor.float` by `Tensor.double`."""

    def __torch_function__(
        self, function: Callable[..., object], types: object, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> object:
        del types
        if function is Tensor.float:
            return args[0].double()
        given = {name: _doubled(value) for name, value in (kwargs or {}).items()}
        return function(*map(_doubled, args), **given)


def _doubled(argument: object) -> Any:
    return torch.float64 if argument is torch.float32 else argument


@contextmanager
def double_precision() -> Iterator[None]:
    """Compute in float64 in the block: new tensors, and those that the code converts to float32, are float64.

    Libraries and trainers convert to float32 in many places, such as the norms of Llama. In float64 throughout, two
    implementations of one formula agree to about 1e-12, and every other difference is one of the formulas.
    """
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with _Doubled():
            yield
    finally:
        torch.set_default_dtype(before)
