"""Registration of the trainer, the architecture and the rewards; light, since every command imports it."""

from __future__ import annotations

from rlcore import hookimpl
from rlcore.hookspecs import Register


@hookimpl
def register_trainers(register: Register) -> None:
    """Register the trainer `ddpo`."""
    register(
        "ddpo",
        "rlcore_ddpo.trainer:DDPOTrainer",
        config="rlcore_ddpo.config:DDPOConfig",
        summary="DDPO: image pipelines learn from a reward of their images",
    )


@hookimpl
def register_architectures(register: Register) -> None:
    """Register the architecture `stable_diffusion`."""
    register(
        "stable_diffusion",
        "rlcore_ddpo.pipeline_loading:build_stable_diffusion",
        config="rlcore_ddpo.config:StableDiffusionConfig",
        summary="a StableDiffusionPipeline of diffusers, with its UNet or LoRA layers in it to train",
    )


@hookimpl
def register_rewards(register: Register) -> None:
    """Register the rewards of images."""
    register(
        "jpeg_compressibility",
        "rlcore_ddpo.image_sampling:jpeg_compressibility",
        summary="images: minus the size as a JPEG file, in kB",
    )
    register(
        "jpeg_incompressibility",
        "rlcore_ddpo.image_sampling:jpeg_incompressibility",
        summary="images: the size as a JPEG file, in kB",
    )
    register("brightness", "rlcore_ddpo.image_sampling:brightness", summary="images: the mean of all pixels, in [0, 1]")
