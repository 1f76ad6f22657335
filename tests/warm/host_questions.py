"""Operations by which a program asks for values that a device holds."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode


class Questions(TorchFunctionMode):
    """Count operations that launch no kernel on a CPU but synchronise a GPU: tensors to lists and lists to tensors."""

    def __init__(self) -> None:
        super().__init__()
        self.waits: list[str] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func in (torch.tensor, torch.as_tensor) and (kwargs or {}).get("device") is not None
        if made or func in (Tensor.tolist, Tensor.numpy, Tensor.cpu):
            self.waits.append(func.__name__)
        return func(*args, **kwargs or {})
