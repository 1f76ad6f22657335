"""From a batch to an optimizer step: metrics, optimizers, learning-rate schedules."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlcore._lazy import lazy

if TYPE_CHECKING:
    from rlcore.optim.updater import Loss, Meter, Updater

__all__ = [
    "Loss",
    "Meter",
    "Updater",
]

_HOMES = {
    "rlcore.optim.updater": tuple(__all__),
}

__getattr__, __dir__ = lazy(__name__, __all__, _HOMES)
