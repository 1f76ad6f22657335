"""From a batch to an optimizer step: minibatches, metrics, optimizers, learning-rate schedules."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlcore._lazy import lazy

if TYPE_CHECKING:
    from rlcore.optim.batches import Meter, micro_batches, minibatches, put_through
    from rlcore.optim.updater import Loss, Updater

__all__ = [
    "Loss",
    "Meter",
    "Updater",
    "micro_batches",
    "minibatches",
    "put_through",
]

_HOMES = {
    "rlcore.optim.batches": ("Meter", "micro_batches", "minibatches", "put_through"),
    "rlcore.optim.updater": ("Loss", "Updater"),
}

__getattr__, __dir__ = lazy(__name__, __all__, _HOMES)
