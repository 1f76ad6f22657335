"""The parts of a round for `rlcore plan`, which runs them on fake tensors of the same sizes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from rlcore.config import evolve
from rlcore.settings import TrainConfig
from rlcore_ddpo.config import DDPOConfig
from rlcore_ddpo.denoising import Denoiser
from rlcore_ddpo.loss import clipped_loss

if TYPE_CHECKING:
    from rlcore_ddpo.image_pipeline import ImagePipeline

FEW = 2
"""Denoising steps that are run; the others take room for their latents only."""


def workload(config: DDPOConfig, num_prompts: int) -> Mapping[str, Any]:  # noqa: ARG001  (as of every trainer)
    """Return the batch sizes of a run, in images."""
    return {
        "batch_size": config.batch_size, "micro_batch_size": config.micro_batch_size, "num_sampled": config.rollouts,
        "num_held": config.rollouts,
    }  # fmt: skip


def rehearse(model: ImagePipeline, config: DDPOConfig, settings: TrainConfig, world: int) -> Mapping[str, Any]:
    """Return the parts of a round.

    Args:
        model: the pipeline, whose weights may be fake.
        config: options of the trainer.
        settings: the whole configuration.
        world: number of processes.
    """
    per_step, own = -(-config.batch_size // world), -(-config.rollouts // world)
    passed = min(config.micro_batch_size or per_step, per_step)
    at_once = settings.gen.batch_size or config.micro_batch_size or per_step
    prompts, note = _num_eval_prompts(settings)
    evaluated = -(-prompts * settings.eval.samples // world)
    scene = _Round(model, config)
    return {
        "frozen": [model.pipeline.vae, model.pipeline.text_encoder],
        "sampling": {
            "sampling": lambda: scene.sample(own, at_once), "evaluation": lambda: scene.sample(evaluated, at_once),
        },
        "sampled_at_once": min(at_once, own), "loss": lambda: scene.loss(passed), "num_passes": -(-per_step // passed),
        "num_held_bytes": own * scene.latent_bytes, "notes": note,
    }  # fmt: skip


def _num_eval_prompts(settings: TrainConfig) -> tuple[int, tuple[str, ...]]:
    """Return the number of evaluation prompts, and a note if it is assumed."""
    data, most = settings.data, settings.eval.num_prompts
    given = data.prompts if data.eval_prompts is None else data.eval_prompts
    if not isinstance(given, list):
        return most, (f"the number of evaluation prompts is not read here: {most} are assumed, by eval.num_prompts",)
    return len(given) if data.eval_prompts is not None else min(len(given), most), ()


class _Round:
    """The tensors of a round.

    Attributes:
        latent_bytes: bytes of the latents of one image, at all denoising steps.
    """

    def __init__(self, model: ImagePipeline, config: DDPOConfig) -> None:
        self.model, self.config = model, config
        self.denoiser = Denoiser(model, evolve(config, steps=min(FEW, config.steps)))
        self.latent_bytes = 4 * (config.steps + 1) * math.prod(model.latent_shape)

    def sample(self, count: int, at_once: int) -> None:
        """Allocate what sampling `count` images does: in its last batch, and when the batches are joined."""
        size, shape, scale = min(at_once, count), self.model.latent_shape, self.model.pipeline.vae_scale_factor
        of_one = self.latent_bytes + 4 * 3 * shape[1] * shape[2] * scale**2
        run = len(self.denoiser.schedule) + 1
        left_out = size * (self.latent_bytes - 4 * run * math.prod(shape))
        earlier, latents_left, noise_left = _room((count - size) * of_one), _room(left_out), _room(left_out)
        latents, _ = self.denoiser.denoise(self._conditions(size), torch.empty(size, run, *shape))
        del noise_left
        images = self.model.decode(latents[:, -1]).cpu()
        joined = _room(count * of_one)
        del earlier, latents_left, images, joined

    def loss(self, count: int) -> Tensor:
        """Return the loss of images at one denoising step."""
        before, index = torch.empty(count, *self.model.latent_shape), torch.zeros(count, dtype=torch.long)
        logprobs = self.denoiser.logprobs(before, torch.empty_like(before), index, self._conditions(count))
        losses = clipped_loss(logprobs, torch.empty(count), torch.empty(count), clip_range=self.config.clip_range)
        return losses.sum()

    def _conditions(self, count: int) -> Tensor:
        """Return embeddings of prompts, as `Denoiser.conditions` does, which are not computed."""
        encoder: Any = self.model.pipeline.text_encoder
        rows = count if self.config.guidance == 1 else 2 * count
        return torch.empty(
            rows, encoder.config.max_position_embeddings, encoder.config.hidden_size, dtype=encoder.dtype
        )


def _room(size: int) -> Tensor:
    """Return a float32 tensor of so many bytes."""
    return torch.empty(size // 4)
