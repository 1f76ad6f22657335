"""How a model computes and keeps what its layers give: faster, or again instead of remembered."""

from __future__ import annotations

import ctypes
import os
import platform
import warnings

from torch import nn
from transformers import PreTrainedModel
from transformers.activations import FastGELUActivation, NewGELUActivation

from rlcore.models.freezing import HeadlessSeq2Seq


def fuse_activations(model: nn.Module) -> None:
    """Replace GELU modules that are written out in Python by the fused kernel of the same function."""
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, (NewGELUActivation, FastGELUActivation)):
                setattr(module, name, nn.GELU(approximate="tanh"))


def has_fused_activations(model: nn.Module) -> bool:
    """Tell whether `model` has GELU modules that run in the fused kernel of the same function."""
    return any(isinstance(module, nn.GELU) and module.approximate == "tanh" for module in model.modules())


def checkpoint_activations(model: PreTrainedModel | HeadlessSeq2Seq) -> None:
    """Have `model` recompute activations in the backward pass, and what is freed meanwhile go back to the system."""
    hand_back_freed()
    with warnings.catch_warnings():
        # The name that replaces this one is younger than the oldest transformers we take.
        warnings.simplefilter("ignore", FutureWarning)
        model.gradient_checkpointing_enable({"use_reentrant": False})


MMAP_THRESHOLD, LARGE = -3, 1 << 20
"""glibc's number for the bound of what is asked of the system by itself, and the bound that is set, in bytes."""


def hand_back_freed() -> None:
    """Have every block of `LARGE` bytes or more handed back to the system as soon as it is freed, in this process.

    By itself glibc raises that bound to the largest block it has seen freed, up to 32 MiB, and the holes it then leaves
    between tensors that come and go can take more than the tensors do. The price is that the system clears each new
    block. A bound that the environment sets stands; other C libraries are left alone.
    """
    is_set = "MALLOC_MMAP_THRESHOLD_" in os.environ or "glibc.malloc" in os.environ.get("GLIBC_TUNABLES", "")
    if platform.libc_ver()[0] == "glibc" and not is_set:
        ctypes.CDLL(None).mallopt(MMAP_THRESHOLD, LARGE)
