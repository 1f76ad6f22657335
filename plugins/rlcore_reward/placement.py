"""The device that a reward model runs on."""

from __future__ import annotations

from transformers import PreTrainedModel

from rlcore_reward.config import RewardModelConfig
from rlcore_reward.scorer import ModelScorer
from rlcore_transformers.models.auto_device import device_named


def place(scorer: ModelScorer, config: RewardModelConfig) -> None:
    """Move a scorer to the device that its options name; a model in memory stays where it is, unless they name one.

    Raises:
        ConfigError: torch has no such device.
    """
    if not (isinstance(config.path, PreTrainedModel) and config.device == "auto"):
        scorer.to(device_named(config.device, "reward_model.device"))
