"""DDIM as a policy: the mean, the standard deviation and the log-prob of a denoising step."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal

import attrs
import torch
from torch import Tensor

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
