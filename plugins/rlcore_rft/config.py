"""The options of RFT; light, so that `rlcore show rft` needs no torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rlcore.config import config, option
from rlcore.errors import ConfigError
from rlcore.settings import BatchOptions, OptimizerConfig

REST = "Gulcehre et al. 2023, arXiv:2308.08998"


@config
class RFTOptimizer(OptimizerConfig):
    """The optimizer of RFT; other options than `lr` have their usual defaults."""

    lr: float | None = option(
        5e-5, "learning rate after warm-up; null: follows the size of the model (docs/training.md)", gt=0,
        lt=float("inf"), source="chosen here: that of sft, since each improve step imitates",
    )  # fmt: skip
    published = (5e-5, 110e6)  # as of sft


@config
class RFTConfig(BatchOptions):
    """Reward-ranked fine-tuning: imitate the responses that scored best among those to the same prompt."""

    generations: int = option(32, "responses to each prompt of a round", ge=1, unit="sequences", source="trlX")
    prompts: int = option(0, "prompts of a round; 0 takes all, which is right for a few hundred", ge=0)
    history: int = option(
        4, "rounds whose responses are compared and learned from, including the current one", ge=1, unit="rounds"
    )
    improve_steps: int = option(4, "passes over the best of the history in each round", ge=1, source=REST)
    start_percentile: float = option(
        0.7,
        "percentile of a prompt's scores that responses must reach in the first improve step",
        ge=0,
        le=1,
        source="trlX",
    )
    end_percentile: float = option(
        0.95,
        "percentile of a prompt's scores that responses must reach in the last improve step",
        ge=0,
        le=1,
        source="trlX",
    )
    batch_size: int = option(32, "responses of one optimizer step, on all ranks together", ge=1, unit="sequences")
    optimizer: OptimizerConfig = option(
        RFTOptimizer(), "optimizer; the learning-rate schedule advances equally in each improve step"
    )
    dropout: bool = option(True, "dropout as in the model's configuration; false disables it")


def check(config: RFTConfig, num_prompts: int, world: int) -> None:
    """Check options against each other.

    Args:
        config: the options.
        num_prompts: prompts of a round.
        world: number of processes.

    Raises:
        ConfigError: two options contradict each other; the message names the one to change.
    """
    if config.start_percentile > config.end_percentile:
        raise ConfigError(
            f"trainer.start_percentile = {config.start_percentile}: is above end_percentile = "
            f"{config.end_percentile}; thresholds rise from the first improve step to the last: exchange them"
        )
    if num_prompts * config.generations < world:
        raise ConfigError(
            f"trainer.generations = {config.generations}: with {num_prompts} prompts in a round, fewer responses than "
            f"the {world} processes, which each need one"
        )


def workload(config: RFTConfig, num_prompts: int) -> Mapping[str, Any]:
    """Return the batch sizes of a run with these options, for `rlcore plan`."""
    num_sampled = min(config.prompts or num_prompts, num_prompts or config.prompts) * config.generations
    return {"num_sampled": num_sampled, "num_held": num_sampled * config.history}
