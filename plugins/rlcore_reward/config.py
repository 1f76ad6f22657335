"""The options of the trainer and the reward; light, so that `rlcore show reward` needs no torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from rlcore.config import config, option
from rlcore.settings import BatchOptions, OptimizerConfig
from rlcore_transformers.models.model_options import ALL_ON, SpeedConfig, TransformerConfig

CENTERING = "Eisenstein et al. 2023, arXiv:2312.09244, eq. 2"
LIGHTMAN = "Lightman et al. 2023, arXiv:2305.20050"
RAO_KUPPER = "Rao and Kupper 1967"


@config
class RewardOptimizer(OptimizerConfig):
    """The optimizer of reward models; other options than `lr` have their usual defaults."""

    lr: float | None = option(
        1e-4, "learning rate after warm-up; null: follows the size of the model (docs/training.md)", gt=0,
        lt=float("inf"), source="default of TRL 1.16 for reward models",
    )  # fmt: skip


@config
class RewardConfig(BatchOptions):
    """Training of a reward model on pairs of answers."""

    batch_size: int = option(32, "pairs of an optimizer step, on all ranks", ge=1, unit="pairs")
    max_length: int = option(
        1024, "pairs with a longer answer, prompt included, are dropped and counted, because the score is read at the "
        "end; 0: no limit", ge=0, unit="tokens",
    )  # fmt: skip
    center_coef: float = option(
        0.0, "weight of the squared sum of both scores, which keeps scores near 0; 0.01 is usual", ge=0,
        source=CENTERING,
    )  # fmt: skip
    ties: Literal["drop", "learn"] = option(
        "drop", "pairs that are marked as ties: left out and counted, or learned with a probability of their own",
        source=RAO_KUPPER,
    )  # fmt: skip
    tie_ratio: float = option(
        2.0, "with `ties: learn`, theta: an answer must be this much likelier to be the better one than the other "
        "before that is expected; a larger one makes ties likelier", gt=1, source=RAO_KUPPER,
    )  # fmt: skip
    dropout: bool = option(False, "keep the model's dropout while training")
    optimizer: OptimizerConfig = option(RewardOptimizer(), "optimizer, learning-rate schedule, gradient clipping")


@config
class SequenceScorerConfig(TransformerConfig):
    """A model that scores whole sequences: how it is loaded, and which of its parameters train."""

    speed: SpeedConfig = option(ALL_ON, "techniques of speed, each of which can be switched off")


@config
class RewardModelConfig:
    """A reward model as a reward function."""

    path: str | object = option(
        "", "hub id or folder of a sequence classifier with one label, or, from Python, such a model"
    )
    tokenizer: str | object | None = option(None, "hub id, folder or tokenizer; default: the reward model's own")
    batch_size: int = option(16, "answers of one forward pass; they are sorted by length", ge=1, unit="sequences")
    dtype: Literal["float32", "bfloat16", "float16", "auto"] = option("float32", "dtype of the loaded weights")
    device: str = option(
        "auto", "device of the model, such as cpu or cuda:1; auto: this process's accelerator, if it has one; a model "
        "in memory stays where it is",
    )  # fmt: skip
    max_length: int = option(
        0, "longest sequence; a longer one gets None, no reward; 0: the model's context", ge=0, unit="tokens"
    )
    trust_remote_code: bool = option(False, "run code from a hub repository")
    revision: str | None = option(None, "hub revision of the model")


@config
class ProcessRewardConfig(BatchOptions):
    """Training of a process reward model on answers in steps."""

    batch_size: int = option(32, "answers of an optimizer step, on all ranks", ge=1, unit="answers")
    max_length: int = option(
        1024, "longer answers, prompt included, are left out and counted; 0: no limit", ge=0, unit="tokens"
    )
    dropout: bool = option(False, "keep the model's dropout while training")
    optimizer: OptimizerConfig = option(RewardOptimizer(), "optimizer, learning-rate schedule, gradient clipping")


@config
class ProcessRewardModelConfig(RewardModelConfig):
    """A process reward model as a reward function."""

    combine: Literal["min", "product", "last"] = option(
        "min", "how the probabilities that the steps are correct become one number", source=LIGHTMAN
    )


def workload(config: RewardConfig, num_prompts: int) -> Mapping[str, object]:  # noqa: ARG001  (as of every trainer)
    """Return the batch sizes of the trainer `reward` with these options, for `rlcore plan`."""
    return {"batch_size": 2 * config.batch_size, "group": 2}
