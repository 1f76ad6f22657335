"""The model that DDPO trains: the UNet of a `StableDiffusionPipeline`, whose other parts are frozen."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from peft.utils import get_peft_model_state_dict, set_peft_model_state_dict
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from rlcore.errors import CheckpointError
from rlcore_ddpo import diffusers_classes as diffusers

ADAPTER = "default"
"""Name of the LoRA layers in the UNet."""
LORA_FILE = "pytorch_lora_weights.safetensors"
UNET_FILE = "diffusion_pytorch_model.safetensors"
MAX_CACHED = 256
"""Prompts whose embeddings are kept; each takes about 240 kB with Stable Diffusion 1.5."""


class ImagePipeline:
    """A `StableDiffusionPipeline` in training (`rlcore.protocols.Learner`).

    Args:
        pipeline: the pipeline, with a DDIM scheduler; its UNet, or the LoRA layers in it, require gradients.
        has_lora: whether LoRA layers train in place of the UNet's own weights.

    Attributes:
        version: number of changes of the weights so far.
        max_length: 0: the pipeline itself truncates long prompts.
        export_class: the class that loads what `export` writes.
    """

    export_class = "diffusers.StableDiffusionPipeline"
    max_length = 0

    def __init__(self, pipeline: diffusers.StableDiffusionPipeline, *, has_lora: bool) -> None:
        self.pipeline, self.has_lora, self.version = pipeline, has_lora, 0
        self.tokenizer: PreTrainedTokenizerBase = pipeline.tokenizer
        self.module: diffusers.UNet2DConditionModel = pipeline.unet
        self._forward: Callable[..., Any] = self.module
        self._autocast: Callable[[], AbstractContextManager[Any]] = nullcontext
        self._embedding = lru_cache(maxsize=MAX_CACHED)(self._embed)

    @property
    def device(self) -> torch.device:
        """Return the device of the parameters."""
        device: torch.device = next(self.module.parameters()).device
        return device

    @property
    def dtype(self) -> torch.dtype:
        """Return the type of the UNet's own weights."""
        found: torch.dtype = self.module.conv_in.weight.dtype
        return found

    @property
    def latent_shape(self) -> tuple[int, int, int]:
        """Return channels, height and width of the latents of an image."""
        size = self.module.config.sample_size
        height, width = (size, size) if isinstance(size, int) else size
        return int(self.module.config.in_channels), int(height), int(width)

    def to(self, device: torch.device) -> None:
        """Move UNet, VAE and text encoder to `device`."""
        for part in (self.module, self.pipeline.vae, self.pipeline.text_encoder):
            part.to(device)
        self._embedding.cache_clear()

    def use_forward(
        self, forward: Callable[..., object], *, autocast: Callable[[], AbstractContextManager[Any]]
    ) -> None:
        """Predict through `forward` instead of the UNet, inside the context that `autocast()` returns."""
        self._forward, self._autocast = forward, autocast

    def training_step(self) -> AbstractContextManager[Any]:
        """Return a context that does nothing: the embeddings of prompts hold beyond a step, as nothing changes them."""
        return nullcontext()

    def embeddings(self, texts: Sequence[str]) -> Tensor:
        """Return the text encoder's outputs for prompts, float[B, T, H]; each is computed once."""
        return torch.stack([self._embedding(text) for text in texts])

    @torch.no_grad()
    def _embed(self, text: str) -> Tensor:
        with diffusers.quiet_diffusers():
            embedding: Tensor = self.pipeline.encode_prompt(text, self.device, 1, False)[0][0]
        return embedding

    def predict(self, latents: Tensor, timesteps: Tensor, conditions: Tensor, *, guidance: float = 1.0) -> Tensor:
        """Return the UNet's prediction, with guidance u + s (c - u): float[B, C, h, w], of the type of the latents.

        Args:
            latents: float[B, C, h, w].
            timesteps: long[B].
            conditions: float[B, T, H], or with guidance float[2 B, T, H], the negative prompt's first; both go through
                the UNet as one batch.
            guidance: s.
        """
        inputs = latents.to(self.dtype)
        if guidance != 1:
            inputs, timesteps = torch.cat([inputs, inputs]), torch.cat([timesteps, timesteps])
        with self._autocast():
            output: Tensor = self._forward(inputs, timesteps, encoder_hidden_states=conditions, return_dict=False)[0]
        output = output.to(latents.dtype)
        if guidance == 1:
            return output
        unconditional, conditional = output.chunk(2)
        return unconditional + guidance * (conditional - unconditional)

    @torch.no_grad()
    def decode(self, latents: Tensor) -> Tensor:
        """Return the images of latents: float32[B, 3, H, W] in [0, 1]."""
        vae = self.pipeline.vae
        scaled = latents.to(vae.dtype) / vae.config.scaling_factor
        images: Tensor = vae.decode(scaled, return_dict=False)[0].float()
        return (images / 2 + 0.5).clamp(0, 1)

    def save_pretrained(self, folder: Path) -> None:
        """Write the UNet as `unet/`, or the LoRA layers alone, in the formats of diffusers."""
        with diffusers.quiet_diffusers():
            if self.has_lora:
                options = self.module.peft_config[ADAPTER].to_dict()  # without them, loading assumes lora_alpha = r
                plain = {name: sorted(value) if isinstance(value, set) else value for name, value in options.items()}
                diffusers.StableDiffusionPipeline.save_lora_weights(
                    folder, unet_lora_layers=self._lora(), weight_name=LORA_FILE, unet_lora_adapter_metadata=plain
                )
            else:
                self.module.save_pretrained(folder / "unet", max_shard_size="1TB")

    def load_pretrained(self, folder: Path) -> None:
        """Load the weights from a folder that `save_pretrained` wrote, in place.

        Raises:
            CheckpointError: the folder cannot be read, or contains another UNet or other LoRA layers.
        """
        file = folder / LORA_FILE if self.has_lora else folder / "unet" / UNET_FILE
        try:
            found = load_file(file)
        except (OSError, RuntimeError, SafetensorError) as error:
            raise CheckpointError(f"{file}: the weights cannot be read: {error}") from error
        own = self._lora() if self.has_lora else self.module.state_dict()
        found = {name.removeprefix("unet.") if self.has_lora else name: weight for name, weight in found.items()}
        ours, theirs = ({name: tuple(each.shape) for name, each in weights.items()} for weights in (own, found))
        if differing := [name for name in {**ours, **theirs} if ours.get(name) != theirs.get(name)]:
            raise CheckpointError(
                f"{file}: holds weights of another model: {differing[0]} has the shape {theirs.get(differing[0])}, "
                f"the model's {ours.get(differing[0])}; resume with the options of `model` of the first run"
            )
        if self.has_lora:
            set_peft_model_state_dict(self.module, found, adapter_name=ADAPTER)
        else:
            self.module.load_state_dict(found)
        self.version += 1

    def export(self, folder: Path) -> None:
        """Write a pipeline that plain diffusers loads; LoRA layers are merged, and also saved in `adapter/`."""
        if not self.has_lora:
            with diffusers.quiet_diffusers():
                self.pipeline.save_pretrained(folder)
            return
        with diffusers.quiet_diffusers():
            merged = copy.deepcopy(self.module)
            merged.fuse_lora()
            merged.unload_lora()
            whole = copy.copy(self.pipeline)
            whole.register_modules(unet=merged)
            whole.save_pretrained(folder)
        self.save_pretrained(folder / "adapter")

    def _lora(self) -> dict[str, Tensor]:
        return dict(get_peft_model_state_dict(self.module, adapter_name=ADAPTER))
