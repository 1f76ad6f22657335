"""The device that a reward model runs on."""

from __future__ import annotations

import os

import torch
from transformers import PreTrainedModel

from rlcore.errors import ConfigError
from rlcore_reward.config import RewardModelConfig
from rlcore_reward.scorer import ModelScorer


def place(scorer: ModelScorer, config: RewardModelConfig) -> None:
    """Move a scorer to the device that its options name; a model in memory stays where it is, unless they name one.

    Raises:
        ConfigError: torch has no such device.
    """
    if not (isinstance(config.path, PreTrainedModel) and config.device == "auto"):
        scorer.to(_device(config.device))


def _device(name: str) -> torch.device:
    if name != "auto":
        try:
            return torch.device(name)
        except RuntimeError as error:
            raise ConfigError(f"reward_model.device = {name!r}: is no device of torch; give cpu or cuda:0") from error
    if os.environ.get("ACCELERATE_USE_CPU") or not torch.accelerator.is_available():
        return torch.device("cpu")
    kind = torch.accelerator.current_accelerator()
    if kind is None or kind.type == "mps":  # on which no run is either (docs/gpus.md)
        return torch.device("cpu")
    return torch.device(kind.type, int(os.environ.get("LOCAL_RANK", "0")))
