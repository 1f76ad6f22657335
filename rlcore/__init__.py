"""Reinforcement-learning fine-tuning of language models, one plugin per algorithm."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlcore._lazy import lazy
from rlcore._version import __version__

if TYPE_CHECKING:
    from rlcore.errors import RLCoreError
    from rlcore.hookspecs import hookimpl
    from rlcore.sampling import sample
    from rlcore.settings import TrainConfig
    from rlcore.training.api import Result, train
    from rlcore.types import PolicyOutputs, Prompt, Trajectories

__all__ = [
    "PolicyOutputs",
    "Prompt",
    "RLCoreError",
    "Result",
    "TrainConfig",
    "Trajectories",
    "__version__",
    "hookimpl",
    "sample",
    "train",
]

_HOMES = {
    "rlcore.errors": ("RLCoreError",),
    "rlcore.hookspecs": ("hookimpl",),
    "rlcore.sampling": ("sample",),
    "rlcore.settings": ("TrainConfig",),
    "rlcore.training.api": ("Result", "train"),
    "rlcore.types": ("PolicyOutputs", "Prompt", "Trajectories"),
}

__getattr__, __dir__ = lazy(__name__, __all__, _HOMES)
