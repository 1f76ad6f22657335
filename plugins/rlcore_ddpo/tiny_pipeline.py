"""A small pipeline with random weights, for tests and examples: nothing is downloaded.

Also in this file: a pipeline with the sizes of another one and random weights, built from its configurations alone.
"""

from __future__ import annotations

import string
from pathlib import Path
from typing import Any

import torch
from transformers import CLIPTextConfig, CLIPTextModel, CLIPTokenizer, PreTrainedTokenizerBase

from rlcore_ddpo import diffusers_classes as diffusers
from rlcore_ddpo.config import StableDiffusionConfig

WIDTH = 16
MAX_TOKENS = 16


def make_tiny_pipeline(*, size: int = 4, seed: int = 0, **scheduler: Any) -> diffusers.StableDiffusionPipeline:
    """Return a StableDiffusionPipeline with latents of 4 * size * size elements and images of twice that side.

    Args:
        size: height and width of the latents, a multiple of 2.
        seed: of the random weights.
        scheduler: options of the `DDIMScheduler` that differ from those of Stable Diffusion.
    """
    torch.manual_seed(seed)
    letters = [*string.ascii_lowercase, *(f"{letter}</w>" for letter in string.ascii_lowercase)]
    vocabulary = {token: i for i, token in enumerate([*letters, "<|startoftext|>", "<|endoftext|>"])}
    end = len(vocabulary) - 1
    tokenizer = CLIPTokenizer(vocab=vocabulary, merges=[], model_max_length=MAX_TOKENS)
    text_encoder = CLIPTextModel(CLIPTextConfig(
        vocab_size=len(vocabulary), hidden_size=WIDTH, intermediate_size=2 * WIDTH, num_attention_heads=2,
        num_hidden_layers=1, max_position_embeddings=MAX_TOKENS, bos_token_id=end - 1, eos_token_id=end,
        pad_token_id=end,
    ))  # fmt: skip
    unet = diffusers.UNet2DConditionModel(
        sample_size=size, block_out_channels=(16, 32), layers_per_block=1, in_channels=4, out_channels=4,
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"), up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
        cross_attention_dim=WIDTH, attention_head_dim=4, norm_num_groups=4,
    )  # fmt: skip
    vae = diffusers.AutoencoderKL(
        sample_size=2 * size, block_out_channels=(8, 16), latent_channels=4, norm_num_groups=4,
        down_block_types=("DownEncoderBlock2D",) * 2, up_block_types=("UpDecoderBlock2D",) * 2,
    )  # fmt: skip
    stable_diffusion = {"beta_start": 0.00085, "beta_end": 0.012, "beta_schedule": "scaled_linear", "steps_offset": 1}
    options = {**stable_diffusion, "clip_sample": False, "set_alpha_to_one": False, **scheduler}
    return diffusers.StableDiffusionPipeline(
        vae=vae, text_encoder=text_encoder, tokenizer=tokenizer, unet=unet,
        scheduler=diffusers.DDIMScheduler(**options), safety_checker=None, feature_extractor=None,
        requires_safety_checker=False,
    )  # fmt: skip


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
