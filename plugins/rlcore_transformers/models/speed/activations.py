"""Fused GELU kernels, and activation checkpointing.

Also in this file: the probe that decides whether a technique may be used with a model: a small batch must come out the
same.
"""

from __future__ import annotations

import ctypes
import os
import platform
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.activations import FastGELUActivation, NewGELUActivation

from rlcore.errors import ModelError
from rlcore.ops import eval_mode
from rlcore_transformers.models.freezing import HeadlessSeq2Seq, vocabulary_size
from rlcore_transformers.models.hub import first_line
from rlcore_transformers.models.speed import TechniqueRefused


def fuse_activations(model: nn.Module) -> None:
    """Replace GELU modules written out in Python by torch's fused kernel of the same function."""
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, (NewGELUActivation, FastGELUActivation)):
                setattr(module, name, nn.GELU(approximate="tanh"))


def has_fused_activations(model: nn.Module) -> bool:
    """Return whether `model` has GELU modules that run in the fused kernel."""
    return any(isinstance(module, nn.GELU) and module.approximate == "tanh" for module in model.modules())


def checkpoint_activations(model: PreTrainedModel | HeadlessSeq2Seq) -> None:
    """Let `model` recompute activations in the backward pass, and return freed memory to the system at once."""
    hand_back_freed()
    with warnings.catch_warnings():
        # The name that replaces this one is younger than the oldest transformers we take.
        warnings.simplefilter("ignore", FutureWarning)
        model.gradient_checkpointing_enable({"use_reentrant": False})


MMAP_THRESHOLD, LARGE = -3, 1 << 20
"""glibc's parameter for the size above which a block is mapped separately, and the value to set, in bytes."""


def hand_back_freed() -> None:
    """Make glibc return every block of `LARGE` bytes or more to the system as soon as it is freed, in this process.

    By default glibc raises this threshold to the largest block freed so far, up to 32 MiB, and the holes between
    tensors can then take more memory than the tensors. The cost is that the system clears each new block. A threshold
    set in the environment is kept; other C libraries are not changed.
    """
    is_set = "MALLOC_MMAP_THRESHOLD_" in os.environ or "glibc.malloc" in os.environ.get("GLIBC_TUNABLES", "")
    if platform.libc_ver()[0] == "glibc" and not is_set:
        ctypes.CDLL(None).mallopt(MMAP_THRESHOLD, LARGE)


FAILURES = (ModelError, TypeError, ValueError, RuntimeError, AttributeError, KeyError, IndexError)
"""What models raise at a batch laid out in a way that they do not support."""


@contextmanager
def probing(model: PreTrainedModel) -> Iterator[None]:
    """Run a probe: in evaluation mode, without gradients, every failure of the model turned into `TechniqueRefused`.

    Raises:
        TechniqueRefused: the model failed inside the context, or the probe refused it.
    """
    with torch.no_grad(), eval_mode(model):
        try:
            yield
        except FAILURES as error:
            raise TechniqueRefused(f"{type(error).__name__}: {first_line(error)}") from error


def probe_tokens(model: PreTrainedModel, columns: int) -> Tensor:
    """Return two rows of different tokens of the model's vocabulary: long[2, columns]."""
    return (torch.arange(2 * columns, device=model.device).reshape(2, columns) * 7 + 1) % vocabulary_size(model)


def tolerance(model: PreTrainedModel, low_precision: float = 0.05) -> float:
    """Return the relative difference that a different order of sums may cause in the model's precision."""
    return 1e-4 if model.dtype == torch.float32 else low_precision


def require_same(model: PreTrainedModel, what: str, seen: Tensor, expected: Tensor, *, offset: float = 0.0) -> None:
    """Refuse a technique whose result differs from the model's own by more than rounding; NaN always differs.

    Args:
        model: the model, whose precision sets the tolerance.
        what: name of the result, for the reason.
        seen: the technique's result.
        expected: the model's own.
        offset: added to the largest expected number, by which differences are divided.

    Raises:
        TechniqueRefused: they differ.
    """
    error, largest = float((seen - expected).abs().max()), float(expected.abs().max())
    if not error <= tolerance(model) * (offset + largest):
        raise TechniqueRefused(f"{what} differ by {error:.2g} of {largest:.2g}")
