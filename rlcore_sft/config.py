"""The options of supervised fine-tuning; light, so that `rlcore show sft` needs no torch."""

from __future__ import annotations

from rlcore.config import config, option
from rlcore.settings import BatchOptions, OptimizerConfig


@config
class SFTConfig(BatchOptions):
    """Supervised fine-tuning: maximise the log-likelihood of the chosen tokens of demonstrations."""

    batch_size: int = option(32, "demonstrations of one optimizer step, on all ranks together", ge=1, unit="sequences")
    dropout: bool = option(True, "dropout as in the model's configuration; false disables it")
    optimizer: OptimizerConfig = option(
        OptimizerConfig(lr=5e-5), "optimizer, learning-rate schedule, bound on gradients"
    )
