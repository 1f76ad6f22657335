"""The folder of a run: claim it, and write, verify, prune and restore its checkpoints."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlcore._lazy import lazy

if TYPE_CHECKING:
    from rlcore.checkpoints.manifest import verify_model
    from rlcore.checkpoints.run_folder import sync

__all__ = ["sync", "verify_model"]

_HOMES = {"rlcore.checkpoints.run_folder": ("sync",), "rlcore.checkpoints.manifest": ("verify_model",)}

__getattr__, __dir__ = lazy(__name__, __all__, _HOMES)
