"""Short runs of DDPO on the tiny pipeline."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

import rlcore
from rlcore.training.api import Result
from rlcore_ddpo.config import DDPOConfig, StableDiffusionConfig
from rlcore_ddpo.denoising import Denoiser
from rlcore_ddpo.image_pipeline import ImagePipeline
from rlcore_ddpo.pipeline_loading import build_stable_diffusion, make_tiny_pipeline

TRAINER = {"name": "ddpo", "rollouts": 4, "batch_size": 4, "steps": 3, "guidance": 2.0, "clip_range": 0.05}


def train(
    folder: Path, *, model: Any = None, steps: int = 1, trainer: dict[str, Any] | None = None, **options: Any
) -> Result:
    """Train for a few rounds in `folder`; `trainer` changes options of the trainer."""
    given = {"prompts": ["a cat", "a dog"], "reward_fn": "brightness", "loggers": [], **options}
    run = {"root": str(folder), "name": "run", "steps": steps, **given.pop("run", {})}
    evaluation = {"at_end": False, **given.pop("eval", {})}
    pipeline = make_tiny_pipeline() if model is None else model
    return rlcore.train(pipeline, trainer={**TRAINER, **(trainer or {})}, run=run, eval=evaluation, **given)


def make_denoiser(
    *, scheduler: dict[str, Any] | None = None, dtype: torch.dtype = torch.float64, **options: Any
) -> Denoiser:
    """Return a denoiser of the tiny pipeline with weights and schedule of `dtype`."""
    pipeline = make_tiny_pipeline(**(scheduler or {}))
    model: ImagePipeline = build_stable_diffusion(pipeline, StableDiffusionConfig())
    for part in (pipeline.unet, pipeline.vae, pipeline.text_encoder):
        part.to(dtype)
    denoiser = Denoiser(model, DDPOConfig(**options))
    schedule = type(denoiser.schedule).of(pipeline.scheduler, steps=options["steps"], eta=options.get("eta", 1.0))
    denoiser.schedule = schedule.to(model.device, dtype)
    return denoiser
