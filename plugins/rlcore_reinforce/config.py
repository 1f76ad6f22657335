"""The options of REINFORCE; light, so that `rlcore show reinforce` needs no torch."""

from __future__ import annotations

from rlcore.config import config, option
from rlcore.settings import BatchOptions


@config
class ReinforceConfig(BatchOptions):
    """REINFORCE: raise the log-probability of responses that scored better than the others of their round."""

    rollouts: int = option(
        64, "responses of a round and its one optimizer step, on all ranks together", ge=2, unit="sequences"
    )
