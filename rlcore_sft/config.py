"""The options of supervised fine-tuning; light, so that `rlcore show sft` needs no torch."""

from __future__ import annotations

from rlcore.config import config, option
from rlcore.config.workload import Workload
from rlcore.settings import MICRO_BATCH_TOKENS, OptimizerConfig


@config
class SFTConfig:
    """Supervised fine-tuning: make the chosen tokens of demonstrations likelier."""

    batch_size: int = option(32, "demonstrations of one optimizer step, on all ranks together", ge=1, unit="sequences")
    micro_batch_size: int = option(
        0, "demonstrations of one forward pass on a rank; changes memory, never the gradient; 0 takes all", ge=0
    )
    micro_batch_tokens: int = option(0, MICRO_BATCH_TOKENS, ge=0, unit="tokens")
    optimizer: OptimizerConfig = option(OptimizerConfig(lr=5e-5), "AdamW")
    dropout: bool = option(True, "drop out as the model's configuration says; False trains without")


def workload(config: SFTConfig, num_prompts: int) -> Workload:  # noqa: ARG001  (as rlcore asks)
    """Say what a run with these options will ask for, for `rlcore plan`."""
    return Workload(
        batch_size=config.batch_size,
        micro_batch_size=config.micro_batch_size,
        micro_batch_tokens=config.micro_batch_tokens,
        dropout=config.dropout,
    )
