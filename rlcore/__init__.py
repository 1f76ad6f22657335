"""Reinforcement-learning fine-tuning of language models, one plugin per algorithm."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from rlcore._version import __version__
from rlcore.hookspecs import hookimpl

if TYPE_CHECKING:
    from rlcore.errors import RLCoreError
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

# Imported on first use: `import rlcore` costs what its plugin door costs, and no torch.
_LAZY = {
    "Prompt": "rlcore.types",
    "RLCoreError": "rlcore.errors",
    "Result": "rlcore.training.api",
    "PolicyOutputs": "rlcore.types",
    "TrainConfig": "rlcore.settings",
    "Trajectories": "rlcore.types",
    "sample": "rlcore.sampling",
    "train": "rlcore.training.api",
}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(importlib.import_module(_LAZY[name]), name)
    raise AttributeError(f"module 'rlcore' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted(__all__)
