"""A pipeline with the sizes of another one and random weights, built from its configurations alone."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import CLIPTextConfig, CLIPTextModel, PreTrainedTokenizerBase

from rlcore_ddpo import diffusers_classes as diffusers
from rlcore_ddpo.config import StableDiffusionConfig


def pipeline_of_configs(
    name: str | Path, config: StableDiffusionConfig, tokenizer: PreTrainedTokenizerBase
) -> diffusers.StableDiffusionPipeline:
    """Return a pipeline whose parts have the sizes of those of a folder or hub id; no weights are read.

    Args:
        name: the folder or hub id.
        config: revision and type of the weights.
        tokenizer: the pipeline's tokenizer.
    """
    source: dict[str, Any] = {"revision": config.revision}
    with diffusers.quiet_diffusers():
        unet, vae = (
            kind.from_config(kind.load_config(name, subfolder=folder, **source)).to(getattr(torch, config.dtype))
            for kind, folder in ((diffusers.UNet2DConditionModel, "unet"), (diffusers.AutoencoderKL, "vae"))
        )
        options = CLIPTextConfig.from_pretrained(name, subfolder="text_encoder", **source)
        scheduler = diffusers.DDIMScheduler.from_pretrained(name, subfolder="scheduler", **source)
        return diffusers.StableDiffusionPipeline(
            vae=vae, text_encoder=CLIPTextModel(options).to(getattr(torch, config.dtype)), tokenizer=tokenizer,
            unet=unet, scheduler=scheduler, safety_checker=None, feature_extractor=None,
            requires_safety_checker=False,
        )  # fmt: skip
