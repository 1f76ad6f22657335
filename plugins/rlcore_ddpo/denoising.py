"""Sampling of images, and the log-probs of their denoising steps under the present weights.

Also in this file: DDIM as a policy: the mean, the standard deviation and the log-prob of a denoising step.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import attrs
import torch
from torch import Tensor

from rlcore.errors import ConfigError
from rlcore.profiling import phase
from rlcore_ddpo.config import DDPOConfig

if TYPE_CHECKING:
    from rlcore_ddpo.image_pipeline import ImagePipeline


Prediction = Literal["epsilon", "v_prediction", "sample"]


@attrs.frozen(eq=False, kw_only=True)
class Schedule:
    """The coefficients of S denoising steps, from noise to image (Song et al. 2020, arXiv:2010.02502, eqs. 12, 16).

    Attributes:
        timesteps: long[S], t of each step.
        alpha: float64[S], sqrt(abar_t).
        beta: float64[S], sqrt(1 - abar_t).
        next_alpha: float64[S], sqrt(abar_t').
        direction: float64[S], sqrt(1 - abar_t' - sigma^2).
        sigma: float64[S], standard deviation of the step's noise.
        prediction: what the UNet predicts.
        clip: bound of the predicted x0; None: it is not clipped.
    """

    timesteps: Tensor
    alpha: Tensor
    beta: Tensor
    next_alpha: Tensor
    direction: Tensor
    sigma: Tensor
    prediction: Prediction = "epsilon"
    clip: float | None = None

    @classmethod
    def of(cls, scheduler: Any, *, steps: int, eta: float) -> Schedule:
        """Return the schedule of a `DDIMScheduler` of diffusers.

        Args:
            scheduler: its timesteps are set to those of S steps.
            steps: S.
            eta: factor of the standard deviation of DDPM.
        """
        scheduler.set_timesteps(steps)
        options: Mapping[str, Any] = scheduler.config
        timesteps = scheduler.timesteps.cpu()
        cumulative, after = scheduler.alphas_cumprod.double(), timesteps - options["num_train_timesteps"] // steps
        here = cumulative[timesteps]
        there = torch.where(after >= 0, cumulative[after.clamp(min=0)], scheduler.final_alpha_cumprod.double())
        variance = eta**2 * (1 - there) / (1 - here) * (1 - here / there)
        clip = options["clip_sample_range"] if options["clip_sample"] else None
        return cls(
            timesteps=timesteps, alpha=here.sqrt(), beta=(1 - here).sqrt(), next_alpha=there.sqrt(),
            direction=(1 - there - variance).clamp(min=0).sqrt(), sigma=variance.clamp(min=0).sqrt(),
            prediction=options["prediction_type"], clip=clip,
        )  # fmt: skip

    def __len__(self) -> int:
        return len(self.timesteps)

    def to(self, device: torch.device, dtype: torch.dtype) -> Schedule:
        """Return the schedule on a device, with coefficients of another type."""
        names = ("alpha", "beta", "next_alpha", "direction", "sigma")
        cast = {name: getattr(self, name).to(device, dtype) for name in names}
        return attrs.evolve(self, timesteps=self.timesteps.to(device), **cast)

    @property
    def is_random(self) -> Tensor:
        """Return bool[S], True for steps with noise; the others are no actions."""
        return self.sigma > 0

    def mean(self, prediction: Tensor, latents: Tensor, index: Tensor) -> Tensor:
        """Return mu, the mean of the latents after a step: float[B, ...].

        Args:
            prediction: float[B, ...], the UNet's, with guidance.
            latents: float[B, ...], before the step.
            index: long[B], which step it is.
        """
        alpha, beta, next_alpha, direction = (
            each[index].view(-1, *(1 for _ in latents.shape[1:]))
            for each in (self.alpha, self.beta, self.next_alpha, self.direction)
        )
        if self.prediction == "epsilon":
            noise, image = prediction, (latents - beta * prediction) / alpha
        elif self.prediction == "sample":
            noise, image = (latents - alpha * prediction) / beta, prediction
        else:
            noise, image = alpha * prediction + beta * latents, alpha * latents - beta * prediction
        if self.clip is not None:
            image = image.clamp(-self.clip, self.clip)
        return next_alpha * image + direction * noise

    def logprobs(self, after: Tensor, mean: Tensor, index: Tensor) -> Tensor:
        """Return the mean log-density of the latents after a step, over their elements: float[B]; 0 where sigma is 0.

        Args:
            after: float[B, ...], latents after the step.
            mean: float[B, ...], as `mean` returns it.
            index: long[B], which step it is.
        """
        sigma = self.sigma[index]
        safe = sigma.where(sigma > 0, 1.0)
        square = (after - mean).square().flatten(1).mean(1)
        density = -square / (2 * safe.square()) - safe.log() - math.log(2 * math.pi) / 2
        return density.where(sigma > 0, 0.0)


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
