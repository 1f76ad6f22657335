"""Fused GELU kernels, and activation checkpointing."""

from __future__ import annotations

import ctypes
import os
import platform
import warnings

from torch import nn
from transformers import PreTrainedModel
from transformers.activations import FastGELUActivation, NewGELUActivation

from rlcore_transformers.models.freezing import HeadlessSeq2Seq


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
