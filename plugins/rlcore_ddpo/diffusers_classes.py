"""The classes of diffusers that this package uses, imported without messages about optional packages."""

from __future__ import annotations

from rlcore_ddpo.quiet_diffusers import quiet_diffusers

with quiet_diffusers():
    from diffusers import AutoencoderKL, DDIMScheduler, StableDiffusionPipeline, UNet2DConditionModel

__all__ = ["AutoencoderKL", "DDIMScheduler", "StableDiffusionPipeline", "UNet2DConditionModel"]
