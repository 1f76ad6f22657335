"""The options of supervised fine-tuning; light, so that `rlcore show sft` needs no torch."""

from __future__ import annotations

from rlcore.config import config, option
from rlcore.settings import BatchOptions, OptimizerConfig

SOURCE = "default of transformers; Devlin et al. 2019, arXiv:1810.04805, appendix A.3: 2e-5 to 5e-5"


@config
class SFTOptimizer(OptimizerConfig):
    """The optimizer of supervised fine-tuning; other options than `lr` have their usual defaults."""

    lr: float | None = option(
        5e-5, "learning rate after warm-up; null: follows the size of the model (docs/training.md)", gt=0,
        lt=float("inf"), source=SOURCE,
    )  # fmt: skip
    published = (5e-5, 110e6)  # BERT


@config
class SFTConfig(BatchOptions):
    """Supervised fine-tuning: maximise the log-likelihood of the chosen tokens of demonstrations."""

    batch_size: int = option(32, "demonstrations of one optimizer step, on all ranks together", ge=1, unit="sequences")
    dropout: bool = option(True, "dropout as in the model's configuration; false disables it")
    optimizer: OptimizerConfig = option(SFTOptimizer(), "optimizer, learning-rate schedule, bound on gradients")
