"""Sampling of images, and the log-probs of their denoising steps under the present weights."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rlcore.errors import ConfigError
from rlcore.profiling import phase
from rlcore_ddpo.config import DDPOConfig
from rlcore_ddpo.ddim import Schedule

if TYPE_CHECKING:
    from rlcore_ddpo.image_pipeline import ImagePipeline


class Denoiser:
    """The policy over denoising steps: a pipeline with a schedule and guidance.

    Args:
        model: the pipeline.
        config: number of steps, noise and guidance.

    Attributes:
        schedule: the coefficients of the steps.

    Raises:
        ConfigError: the scheduler has no such number of steps.
    """

    def __init__(self, model: ImagePipeline, config: DDPOConfig) -> None:
        self.model, self.guidance, self.negative = model, config.guidance, config.negative_prompt
        scheduler, longest = model.pipeline.scheduler, int(model.pipeline.scheduler.config.num_train_timesteps)
        if config.steps > longest:
            raise ConfigError(
                f"trainer.steps = {config.steps}: the scheduler has {longest} timesteps; set as many or fewer"
            )
        schedule = Schedule.of(scheduler, steps=config.steps, eta=config.eta)
        self.schedule = schedule.to(model.device, torch.float32)

    def conditions(self, texts: Sequence[str]) -> Tensor:
        """Return the conditions of `ImagePipeline.predict` for prompts; with guidance, the negative prompt's first."""
        found = self.model.embeddings(texts)
        if self.guidance == 1 or self.negative is None:
            return found
        negative = self.model.embeddings([self.negative])
        return torch.cat([negative.expand(len(texts), -1, -1), found])

    def sample(self, texts: Sequence[str], noise: Tensor) -> tuple[Tensor, Tensor]:
        """Denoise one image for each prompt.

        Args:
            texts: B prompts.
            noise: float[B, S + 1, C, h, w], the first latents and the noise of each step.

        Returns:
            The latents before and after every step, float[B, S + 1, C, h, w], and the log-probs of the steps,
            float[B, S].
        """
        return self.denoise(self.conditions(texts), noise)

    @torch.no_grad()
    def denoise(self, conditions: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        """Denoise as `sample` does, with the embeddings that `conditions` returned."""
        noise = noise.to(self.model.device)
        latents, logprobs = [noise[:, 0]], []
        with phase("generate"):
            for step in range(len(self.schedule)):
                index = torch.full((len(noise),), step, device=noise.device)
                mean = self._mean(latents[-1], index, conditions)
                latents.append(mean + self.schedule.sigma[step] * noise[:, step + 1])
                logprobs.append(self.schedule.logprobs(latents[-1], mean, index))
        return torch.stack(latents, 1), torch.stack(logprobs, 1)

    def logprobs(self, before: Tensor, after: Tensor, index: Tensor, conditions: Tensor) -> Tensor:
        """Return the log-prob of one step of each image, with gradients where they are enabled: float[B].

        Args:
            before: float[B, C, h, w], latents before the step.
            after: float[B, C, h, w], latents after it.
            index: long[B], which step it is.
            conditions: as `conditions` returns them.
        """
        return self.schedule.logprobs(after, self._mean(before, index, conditions), index)

    def _mean(self, latents: Tensor, index: Tensor, conditions: Tensor) -> Tensor:
        timesteps = self.schedule.timesteps[index]
        prediction = self.model.predict(latents, timesteps, conditions, guidance=self.guidance)
        return self.schedule.mean(prediction, latents, index)


def noise_of(keys: Sequence[Sequence[int | str]], shape: Sequence[int]) -> Tensor:
    """Return normal noise for each image, float32[B, *shape], on the CPU.

    It depends on the image's key alone, so that neither batches nor processes change it.

    Args:
        keys: for each image, what distinguishes it, such as (seed, round, number).
        shape: shape of an image's noise.
    """
    rows = []
    for key in keys:
        seed = int.from_bytes(hashlib.sha256(repr(tuple(key)).encode()).digest()[:7], "little")
        rows.append(torch.randn(*shape, generator=torch.Generator().manual_seed(seed)))
    return torch.stack(rows)
