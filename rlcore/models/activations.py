"""How a model computes and keeps what its layers give: faster, or again instead of remembered."""

from __future__ import annotations

import warnings

from torch import nn
from transformers import PreTrainedModel
from transformers.activations import FastGELUActivation, NewGELUActivation

from rlcore.allocation import hand_back_freed
from rlcore.models.blocks import Bare


def fuse_activations(model: nn.Module) -> None:
    """Replace GELU modules that are written out in Python by the fused kernel of the same function."""
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if isinstance(child, (NewGELUActivation, FastGELUActivation)):
                setattr(module, name, nn.GELU(approximate="tanh"))


def checkpoint_activations(model: PreTrainedModel | Bare) -> None:
    """Have `model` recompute activations in the backward pass, and what is freed meanwhile go back to the system."""
    hand_back_freed()
    with warnings.catch_warnings():
        # The name that replaces this one is younger than the oldest transformers we take.
        warnings.simplefilter("ignore", FutureWarning)
        model.gradient_checkpointing_enable({"use_reentrant": False})
