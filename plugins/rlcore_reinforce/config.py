"""The options of REINFORCE; light, so that `rlcore show reinforce` needs no torch."""

from __future__ import annotations

from rlcore.config import config, option
from rlcore.settings import BatchOptions


@config
class ReinforceConfig(BatchOptions):
    """Options of REINFORCE."""

    rollouts: int = option(64, "responses per round and optimizer step, over all ranks", ge=2, unit="sequences")
