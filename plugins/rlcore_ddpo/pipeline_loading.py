"""The architecture `stable_diffusion`: loads a pipeline, checks its parts, and decides what of its UNet trains.

Also in this file: A small pipeline with random weights, for tests and examples: nothing is downloaded.
"""

from __future__ import annotations

import inspect
import os
import string
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig
from transformers import CLIPTextConfig, CLIPTextModel, CLIPTokenizer, PreTrainedTokenizerBase

from rlcore.checkpoints import verify_model
from rlcore.config import ConfigOnly
from rlcore.errors import ModelError
from rlcore.logging import get_logger
from rlcore_ddpo import diffusers_classes as diffusers
from rlcore_ddpo.config import KIND, StableDiffusionConfig
from rlcore_ddpo.image_pipeline import ADAPTER, ImagePipeline
from rlcore_transformers.models.loading import align

WIDTH = 16
MAX_TOKENS = 16


def make_tiny_pipeline(*, size: int = 4, seed: int = 0, **scheduler: object) -> diffusers.StableDiffusionPipeline:
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


INDEX = "model_index.json"
LORA = {"r": 4, "init_lora_weights": "gaussian", "target_modules": ["to_k", "to_q", "to_v", "to_out.0"]}
"""Default options of LoRA layers, as in Black et al.'s code."""
PARTS = ("unet", "vae", "text_encoder", "tokenizer", "scheduler")
PREDICTIONS = ("epsilon", "v_prediction", "sample")


def build_stable_diffusion(spec: object, config: StableDiffusionConfig, *, tokenizer: object = None) -> ImagePipeline:
    """Build an image pipeline from a `StableDiffusionPipeline`.

    VAE and text encoder are frozen, and the scheduler becomes a `DDIMScheduler` with the same noise schedule.

    Args:
        spec: a pipeline in memory, whose UNet is then trained in place, a folder or a hub id; with a
            `rlcore.config.ConfigOnly`, the weights are random.
        config: options of the architecture.
        tokenizer: a tokenizer object in place of the pipeline's own.

    Raises:
        ModelError: the pipeline cannot be loaded, has other parts than those of Stable Diffusion, or a scheduler
            without a noise schedule for DDIM.
    """
    pipeline = spec if isinstance(spec, diffusers.StableDiffusionPipeline) else _load(spec, config, tokenizer)
    _check_parts(pipeline)
    pipeline.scheduler = as_ddim(pipeline.scheduler)
    if tokenizer is not None:
        _set_tokenizer(pipeline, tokenizer)
    pipeline.vae.requires_grad_(False)
    pipeline.text_encoder.requires_grad_(False)
    for part in (pipeline.vae, pipeline.text_encoder, pipeline.unet):
        part.eval()
    if config.lora is None:
        pipeline.unet.requires_grad_(True)
    else:
        _add_lora(pipeline.unet, config.lora)
    if config.gradient_checkpointing:
        pipeline.unet.enable_gradient_checkpointing()
    return ImagePipeline(pipeline, has_lora=config.lora is not None)


def as_ddim(scheduler: object) -> diffusers.DDIMScheduler:
    """Return a `DDIMScheduler` with the noise schedule and the options of a scheduler of the DDPM family.

    A `DDIMScheduler` is returned as it is. Options that other schedulers do not have, such as `clip_sample`, are off.

    Raises:
        ModelError: the scheduler has no such noise schedule, or one that DDIM cannot follow.
    """
    name, options = type(scheduler).__name__, dict(getattr(scheduler, "config", {}))
    prediction = options.get("prediction_type", "epsilon")
    advice = "give the pipeline a DDIMScheduler, or another scheduler of the DDPM family"
    if not hasattr(scheduler, "alphas_cumprod"):
        raise ModelError(f"the pipeline's scheduler, {name}, has no noise schedule that DDIM can follow: {advice}")
    if prediction not in PREDICTIONS:
        raise ModelError(
            f"the pipeline's {name} has prediction_type = {prediction!r}; DDPO knows {', '.join(PREDICTIONS)}: {advice}"
        )
    if options.get("thresholding"):
        raise ModelError(
            f"the pipeline's {name} has thresholding = True, which is not meant for latents: set it to False"
        )
    if options.get("rescale_betas_zero_snr") and prediction == "epsilon":
        raise ModelError(
            f"the pipeline's {name} has rescale_betas_zero_snr = True with prediction_type = 'epsilon', for which the "
            "first step divides by 0: set it to False, or train a model of v_prediction"
        )
    if isinstance(scheduler, diffusers.DDIMScheduler):
        return scheduler
    get_logger("ddpo").info("DDIM takes the place of the pipeline's scheduler", scheduler=name)
    # Not from_config, which drops options that register_to_config has changed from their defaults.
    known = inspect.signature(diffusers.DDIMScheduler).parameters
    kept = {"clip_sample": False, **{option: value for option, value in options.items() if option in known}}
    with diffusers.quiet_diffusers():
        ddim: diffusers.DDIMScheduler = diffusers.DDIMScheduler(**kept)
    _check_rebuilt(ddim, scheduler, kept)
    return ddim


def _check_rebuilt(ddim: diffusers.DDIMScheduler, scheduler: Any, options: Mapping[str, object]) -> None:
    """Check that a rebuilt scheduler has every option of the pipeline's own, and the same noise schedule."""
    name = type(scheduler).__name__
    for option, value in options.items():
        if ddim.config[option] != value:
            raise ModelError(
                f"the pipeline's {name} has {option} = {value!r}, but the DDIMScheduler made of it has "
                f"{ddim.config[option]!r}: give the pipeline a DDIMScheduler"
            )
    if not torch.allclose(ddim.alphas_cumprod, scheduler.alphas_cumprod.to(ddim.alphas_cumprod), atol=1e-6, rtol=1e-5):
        raise ModelError(
            f"the pipeline's {name} has another noise schedule (alphas_cumprod) than its options describe: give the "
            "pipeline a DDIMScheduler"
        )


def _load(spec: object, config: StableDiffusionConfig, tokenizer: Any) -> diffusers.StableDiffusionPipeline:
    if not isinstance(spec, (str, os.PathLike)):
        raise ModelError(
            f"model = {type(spec).__name__}: trainer 'ddpo' takes a StableDiffusionPipeline, its folder or a hub id"
        )
    name = os.fspath(spec)
    folder = Path(name).expanduser()
    if folder.is_dir():
        _check_folder(folder)
        verify_model(folder)
    place = folder if folder.is_dir() else name
    try:
        if isinstance(spec, ConfigOnly):
            return pipeline_of_configs(place, config, tokenizer)
        with diffusers.quiet_diffusers():
            pipeline = diffusers.StableDiffusionPipeline.from_pretrained(
                place, dtype=getattr(torch, config.dtype), revision=config.revision, variant=config.variant,
                safety_checker=None, feature_extractor=None, requires_safety_checker=False,
            )  # fmt: skip
    except (OSError, ValueError, KeyError, TypeError, AttributeError, ImportError) as error:
        found = "folder" if folder.is_dir() else "hub id, and there is no such folder"
        raise ModelError(
            f"model = {name!r} ({found}): cannot be loaded as a StableDiffusionPipeline: {describe(error)}"
        ) from error
    if not isinstance(pipeline, diffusers.StableDiffusionPipeline):
        raise ModelError(f"model = {name!r}: is a {type(pipeline).__name__}, not a StableDiffusionPipeline")
    for part in (pipeline.unet, pipeline.vae, pipeline.text_encoder):
        align(part)
    return pipeline


def _check_folder(folder: Path) -> None:
    if not (folder / INDEX).exists():
        raise ModelError(
            f"model = {str(folder)!r}: has no {INDEX}: name a folder that StableDiffusionPipeline.save_pretrained wrote"
        )
    missing = [name for name in PARTS if not (folder / name).is_dir()]
    if missing:
        raise ModelError(
            f"model = {str(folder)!r}: has no folder {missing[0]!r}: save the whole pipeline with its save_pretrained"
        )


def _check_parts(pipeline: diffusers.StableDiffusionPipeline) -> None:
    for name in PARTS:
        if getattr(pipeline, name, None) is None:
            raise ModelError(f"the pipeline has no {name}: build it with all parts of a StableDiffusionPipeline")
    unet = pipeline.unet
    if not isinstance(unet, diffusers.UNet2DConditionModel):
        raise ModelError(f"the pipeline's unet is a {type(unet).__name__}: must be a UNet2DConditionModel")
    latents = pipeline.vae.config.latent_channels
    if not unet.config.in_channels == unet.config.out_channels == latents:
        raise ModelError(
            f"the UNet takes {unet.config.in_channels} channels and returns {unet.config.out_channels}, but the VAE's "
            f"latents have {latents}: pipelines for inpainting, and UNets that predict variances, cannot be trained"
        )
    for option in ("addition_embed_type", "time_cond_proj_dim", "class_embed_type"):
        if getattr(unet.config, option, None) is not None:
            raise ModelError(f"the UNet has {option}, which a StableDiffusionPipeline does not use: give SD 1 or 2")


def _set_tokenizer(pipeline: diffusers.StableDiffusionPipeline, tokenizer: object) -> None:
    if not isinstance(tokenizer, PreTrainedTokenizerBase):
        raise ModelError(f"tokenizer = {tokenizer!r:.80}: an image pipeline takes a tokenizer object, or has its own")
    options = pipeline.text_encoder.config
    if len(tokenizer) > options.vocab_size:
        raise ModelError(
            f"the tokenizer has {len(tokenizer)} tokens, the text encoder {options.vocab_size}: leave model.tokenizer "
            "out, or pass the tokenizer with which the text encoder was trained"
        )
    tokenizer.model_max_length = min(tokenizer.model_max_length, options.max_position_embeddings)
    pipeline.tokenizer = tokenizer


def describe(error: Exception) -> str:
    """Return the first line of an error's message, or the name of its class."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def _add_lora(unet: diffusers.UNet2DConditionModel, options: dict[str, Any]) -> None:
    """Add LoRA layers; a UNet in memory that has some already continues with these."""
    unet.requires_grad_(False)
    if ADAPTER not in getattr(unet, "peft_config", {}):
        options = {**LORA, **options}
        try:
            unet.add_adapter(LoraConfig(**{"lora_alpha": options["r"], **options}), adapter_name=ADAPTER)
        except (TypeError, ValueError) as error:
            raise ModelError(f"model.lora = {options}: {describe(error)}") from error
    for name, weight in unet.named_parameters():
        if f".{ADAPTER}." in name:
            weight.requires_grad_(True)
            weight.data = weight.data.float()


build_stable_diffusion.builds = KIND  # type: ignore[attr-defined]  # attributes of the Architecture protocol
build_stable_diffusion.example_model = make_tiny_pipeline  # type: ignore[attr-defined]
build_stable_diffusion.example_inputs = {"reward_fn": "rlcore_ddpo.image_sampling:brightness"}  # type: ignore[attr-defined]
