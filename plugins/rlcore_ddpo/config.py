"""The options of DDPO and of image pipelines; light, so that `rlcore show ddpo` needs no torch."""

from __future__ import annotations

from typing import Any, Literal

from rlcore.config import config, option
from rlcore.errors import ConfigError
from rlcore.settings import OptimizerConfig

BLACK = "Black et al. 2023, arXiv:2305.13301"
KIND = "an image pipeline"
"""What the trainer's architecture builds, for errors."""


@config
class DDPOConfig:
    """Reinforcement learning of an image pipeline from a reward of its images."""

    rollouts: int = option(64, "images of a round, on all ranks together", ge=2, unit="images")
    batch_size: int = option(8, "images of one optimizer step, on all ranks together", ge=1, unit="images")
    micro_batch_size: int = option(
        0, "images of one forward pass on a rank, in training and, without gen.batch_size, in sampling; affects "
        "memory, not the gradient; 0: all of an optimizer step", ge=0, unit="images",
    )  # fmt: skip
    epochs: int = option(1, "passes over the images of a round", ge=1, source=BLACK)
    steps: int = option(50, "denoising steps of an image", ge=1, unit="steps", source=BLACK)
    eta: float = option(
        1.0, "noise of a denoising step: 1 is that of DDPM; without any, steps have no log-prob", gt=0, le=1,
        source="DDIM, arXiv:2010.02502, eq. 16",
    )  # fmt: skip
    timestep_fraction: float = option(
        1.0, "share of the denoising steps of an image that a pass learns from, chosen at random for each image", gt=0,
        le=1, source=BLACK,
    )  # fmt: skip
    guidance: float = option(
        5.0, "classifier-free guidance, the same in sampling and training; 1: none", ge=1, source="arXiv:2207.12598"
    )
    negative_prompt: str | None = option("", "what guidance leads away from; null: nothing, with guidance = 1 alone")
    cfg_in_training: bool = option(
        True, "train the guided prediction, which is sampled from; false is refused with guidance, because the ratio "
        "to the old policy would not begin at 1",
    )  # fmt: skip
    clip_range: float = option(
        1e-4, "how far the ratio may leave 1 before its gradient stops; belongs to the size of the latents: 1.6 "
        "divided by their number of elements", gt=0, source=BLACK,
    )  # fmt: skip
    adv_clip: float = option(5.0, "largest absolute advantage", gt=0, source=BLACK)
    stats: Literal["batch", "prompt"] = option(
        "batch", "rewards that a reward is compared with: those of the round, or the last `stats_size` of its prompt",
        source=BLACK,
    )  # fmt: skip
    stats_size: int = option(16, "with `stats: prompt`, rewards kept of each prompt", ge=1, source=BLACK)
    stats_min_count: int = option(
        16, "with `stats: prompt`, rewards of a prompt below which it is compared with the round", ge=1, source=BLACK
    )
    images: Literal["tensor", "pil"] = option(
        "tensor", "form in which reward and metric functions receive the images: float32[n, 3, H, W] in [0, 1] on the "
        "CPU, or a list of PIL images",
    )  # fmt: skip
    optimizer: OptimizerConfig = option(
        OptimizerConfig(lr=3e-4, weight_decay=1e-4, max_grad_norm=1.0),
        "optimizer, learning-rate schedule, gradient clipping",
    )


def check(config: DDPOConfig, world: int) -> None:
    """Check options against each other.

    Raises:
        ConfigError: they contradict each other.
    """
    if config.guidance != 1 and config.negative_prompt is None:
        raise ConfigError(
            f"trainer.guidance = {config.guidance:g} with trainer.negative_prompt = null: guidance needs the embedding "
            "of a negative prompt, which may be the empty text: set negative_prompt to '', or guidance to 1"
        )
    if config.guidance != 1 and not config.cfg_in_training:
        raise ConfigError(
            f"trainer.cfg_in_training = false with trainer.guidance = {config.guidance:g}: the policy that learns "
            "would be another than the one that is sampled from; set guidance to 1, or cfg_in_training to true"
        )
    if config.stats == "prompt" and config.stats_size < config.stats_min_count:
        raise ConfigError(
            f"trainer.stats_size = {config.stats_size} with trainer.stats_min_count = {config.stats_min_count}: no "
            "prompt would ever have so many rewards; set stats_min_count to at most stats_size"
        )
    if config.rollouts < world:
        raise ConfigError(
            f"trainer.rollouts = {config.rollouts}: fewer images than the {world} processes; set at least {world}"
        )


@config
class StableDiffusionConfig:
    """A `StableDiffusionPipeline`: how it is loaded, and what of its UNet trains."""

    lora: dict[str, Any] | None = option(
        None, "train LoRA layers in place of the UNet's own weights: options of peft's `LoraConfig`, such as `{r: 8}`; "
        "default of r: 4, of lora_alpha: r, of target_modules: the projections of attention",
    )  # fmt: skip
    dtype: Literal["float32", "bfloat16", "float16"] = option(
        "float32", "dtype of the loaded weights; LoRA layers are float32 in any case"
    )
    gradient_checkpointing: bool = option(False, "recompute activations in the backward pass to save memory")
    revision: str | None = option(None, "hub revision of the pipeline")
    variant: str | None = option(None, "variant of the weights' files, such as fp16")
