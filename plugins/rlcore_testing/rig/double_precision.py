"""Runs in float64, whatever precision the code of a run names."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode


class _Doubled(TorchFunctionMode):
    """Replace float32 by float64 in the arguments of every function of torch, and `Tensor.float` by `Tensor.double`."""

    def __torch_function__(
        self, function: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        del types
        if function is Tensor.float:
            return args[0].double()
        given = {name: _doubled(value) for name, value in (kwargs or {}).items()}
        return function(*map(_doubled, args), **given)


def _doubled(argument: Any) -> Any:
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
