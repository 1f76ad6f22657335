"""Compile the blocks of a model with `torch.compile`, for the passes that score batches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import MethodType
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import nn
from transformers import PreTrainedModel

from rlcore.errors import ConfigError
from rlcore_transformers.models.freezing import blocks_of
from rlcore_transformers.models.hub import first_line

_COMPILED: WeakKeyDictionary[nn.Module, Callable[..., Any]] = WeakKeyDictionary()
"""Model → what compiles the function of one of its blocks; copies of a model have no entry."""


def use_compiler(model: PreTrainedModel, backend: str) -> None:
    """Let `compiled` compile the blocks of `model`, after a trial on a small function.

    Raises:
        ConfigError: the backend does not exist or cannot run on this machine.
    """
    try:
        torch.compile(lambda x: x * 2 + 1, backend=backend)(torch.zeros(2, device=model.device))
    except Exception as error:  # of any compiler
        raise ConfigError(
            f"model.compile = {backend!r}: torch.compile cannot use it on this machine: {first_line(error)}; known are "
            f"{', '.join(torch.compiler.list_backends())}; leave it out to run the model as it is"
        ) from error
    functions: dict[type[nn.Module], Callable[..., Any]] = {}

    def compile_for(kind: type[nn.Module]) -> Callable[..., Any]:
        if kind not in functions:
            functions[kind] = torch.compile(kind.forward, backend=backend, dynamic=True)
        return functions[kind]

    _COMPILED[model] = compile_for


def is_compiled(model: nn.Module) -> bool:
    """Return whether `use_compiler` was called for this model."""
    return model in _COMPILED


@contextmanager
def compiled(model: PreTrainedModel) -> Iterator[None]:
    """Run the blocks of `model` compiled inside the context, if `use_compiler` was called.

    Outside it, as in sampling, whose shapes change with every token, the blocks run as they are.
    """
    compile_for = _COMPILED.get(model)
    if compile_for is None:
        yield
        return
    blocks: list[Any] = [block for block in blocks_of(model) if "forward" not in vars(block)]
    for block in blocks:
        block.forward = MethodType(compile_for(type(block)), block)
    try:
        yield
    finally:
        for block in blocks:
            del block.forward
