"""The options of REINFORCE; light, so that `rlcore show reinforce` needs no torch."""

from __future__ import annotations

from rlcore.config import config, option
from rlcore.config.workload import Workload
from rlcore.settings import MICRO_BATCH_TOKENS, OptimizerConfig


@config
class ReinforceConfig:
    """REINFORCE: make responses likelier that scored better than the others of their round."""

    rollouts: int = option(
        64, "responses of a round and its one optimizer step, on all ranks together", ge=2, unit="sequences"
    )
    micro_batch_size: int = option(
        0, "responses of one forward pass on a rank; changes memory, never the gradient; 0 takes all", ge=0
    )
    micro_batch_tokens: int = option(0, MICRO_BATCH_TOKENS, ge=0, unit="tokens")
    optimizer: OptimizerConfig = option(OptimizerConfig(lr=3e-5), "AdamW")


def workload(config: ReinforceConfig, num_prompts: int) -> Workload:  # noqa: ARG001  (as rlcore asks)
    """Say what a run with these options will ask for, for `rlcore plan`."""
    return Workload(
        batch_size=config.rollouts,
        micro_batch_size=config.micro_batch_size,
        micro_batch_tokens=config.micro_batch_tokens,
        num_sampled=config.rollouts,
        num_held=config.rollouts,
    )
