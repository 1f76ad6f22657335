"""The options of REINFORCE; light, so that `rlcore show reinforce` needs no torch."""

from __future__ import annotations

from rlcore.config import config, option
from rlcore.settings import OptimizerConfig


@config
class ReinforceConfig:
    """REINFORCE: make responses likelier that scored better than the others of their round."""

    rollouts: int = option(
        64, "responses of a round and its one optimizer step, on all ranks together", ge=2, unit="sequences"
    )
    micro_batch_size: int = option(
        0, "responses of one forward pass on a rank; changes memory, never the gradient; 0 takes all", ge=0
    )
    optimizer: OptimizerConfig = option(OptimizerConfig(lr=3e-5), "AdamW")
