"""Options of the reward; light."""

from __future__ import annotations

from rlcore.config import config, option
from rlcore_reward.config import RewardModelConfig


@config
class VisionRewardConfig(RewardModelConfig):
    """A reward model that sees as a reward function; `path` is a folder that the architecture `vision_scorer` wrote."""

    allow_urls: bool = option(False, "download images that rows name by http or https; refused otherwise")
    image_cache_gb: float = option(1.0, "memory for the pixel values of images", ge=0, unit="GB")
