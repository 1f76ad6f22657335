"""Registration of the architecture `vision_language`; light, since every command imports it."""

from __future__ import annotations

from importlib.util import find_spec

from rlcore import hookimpl
from rlcore.hookspecs import Register


@hookimpl
def register_architectures(register: Register) -> None:
    """Register policies that see images."""
    register(
        "vision_language",
        "rlcore_vision.model:build_vision_language",
        config="rlcore_vision.options:VisionLanguageConfig",
        summary="any AutoModelForImageTextToText whose image features take the place of tokens",
        fits="rlcore_vision.model:fits_vision_language",
        sections={"tokenizer": "rlcore_transformers.models.model_options:TokenizerConfig"},
    )
    register(
        "vision_scorer",
        "rlcore_vision.reward.reward_model:build_vision_scorer",
        config="rlcore_vision.options:VisionLanguageConfig",
        summary="a model that sees, with a score of whole sequences: a reward model for images, of the trainer reward",
        sections={"tokenizer": "rlcore_transformers.models.model_options:TokenizerConfig"},
    )


@hookimpl
def register_rewards(register: Register) -> None:
    """Register the reward of models that see, or, without the package of the extra `reward`, an error that names it."""
    target, options = "rlcore_vision.image_rows:MissingReward", "rlcore_vision.image_rows:MissingOptions"
    if find_spec("rlcore_reward") is not None:
        target = "rlcore_vision.reward.reward_model:VisionRewardModel"
        options = "rlcore_vision.reward.config:VisionRewardConfig"
    register(
        "vision_reward_model", target, config=options,
        summary="the score of a reward model that sees the images of the prompts",
    )  # fmt: skip
