"""Steps of DDIM against the scheduler of diffusers and an implementation in plain numbers, in float64."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from rlcore_ddpo import diffusers_classes as diffusers
from rlcore_ddpo.denoising import Schedule

STABLE_DIFFUSION = {
    "beta_start": 0.00085, "beta_end": 0.012, "beta_schedule": "scaled_linear", "steps_offset": 1,
    "set_alpha_to_one": False,
}  # fmt: skip
SETTINGS: dict[str, dict[str, Any]] = {"stable diffusion": STABLE_DIFFUSION, "default": {}}
SHAPE = (2, 4, 3, 3)


def alphas_of(options: dict[str, Any]) -> list[float]:
    """Return the cumulative products of 1 - beta, computed in plain numbers."""
    low, high, power = options.get("beta_start", 0.0001), options.get("beta_end", 0.02), 1.0
    if options.get("beta_schedule") == "scaled_linear":
        low, high, power = math.sqrt(low), math.sqrt(high), 2.0
    return [float(each) for each in np.cumprod(1 - np.linspace(low, high, 1000) ** power)]


def plain_step(
    options: dict[str, Any], t: int, steps: int, eta: float, output: np.ndarray, latents: np.ndarray
) -> tuple[np.ndarray, float]:
    """Return mean and standard deviation of the latents after step t: Song et al. 2020, eqs. 12 and 16."""
    table = alphas_of(options)
    here, before = table[t], t - 1000 // steps
    there = table[before] if before >= 0 else 1.0 if options.get("set_alpha_to_one", True) else table[0]
    prediction = options["prediction_type"]
    if prediction == "epsilon":
        noise = output
        image = (latents - math.sqrt(1 - here) * noise) / math.sqrt(here)
    elif prediction == "sample":
        image = output
        noise = (latents - math.sqrt(here) * image) / math.sqrt(1 - here)
    else:
        image = math.sqrt(here) * latents - math.sqrt(1 - here) * output
        noise = math.sqrt(here) * output + math.sqrt(1 - here) * latents
    if options["clip_sample"]:
        image = np.clip(image, -1, 1)
    sigma = eta * math.sqrt((1 - there) / (1 - here) * (1 - here / there))
    return math.sqrt(there) * image + math.sqrt(max(1 - there - sigma**2, 0.0)) * noise, sigma


@pytest.mark.parametrize("clip", [False, True], ids=["unclipped", "clipped"])
@pytest.mark.parametrize("prediction", ["epsilon", "v_prediction", "sample"])
@pytest.mark.parametrize("setting", SETTINGS)
def test_every_step_has_the_mean_the_deviation_and_the_logprob_of_the_equations(
    setting: str, prediction: str, clip: bool
) -> None:
    options = {**SETTINGS[setting], "prediction_type": prediction, "clip_sample": clip}
    scheduler, steps, eta = diffusers.DDIMScheduler(**options), 7, 0.8
    # The tables of diffusers are float32; in float64, all differences are of this project's own making.
    scheduler.alphas_cumprod = torch.tensor(alphas_of(options), dtype=torch.float64)
    scheduler.final_alpha_cumprod = torch.tensor(1.0) if setting == "default" else scheduler.alphas_cumprod[0]
    schedule = Schedule.of(scheduler, steps=steps, eta=eta).to(torch.device("cpu"), torch.float64)
    generator = torch.Generator().manual_seed(0)
    output, latents, after = torch.randn(3, *SHAPE, generator=generator, dtype=torch.float64)
    for step, t in enumerate(schedule.timesteps.tolist()):
        index = torch.full((SHAPE[0],), step)
        expected, sigma = plain_step(options, t, steps, eta, output.numpy(), latents.numpy())
        mean = schedule.mean(output, latents, index)
        np.testing.assert_allclose(mean.numpy(), expected, rtol=0, atol=1e-9)
        theirs = scheduler.step(output, t, latents, eta=eta, variance_noise=torch.zeros_like(latents)).prev_sample
        torch.testing.assert_close(mean, theirs, rtol=0, atol=1e-9)
        if sigma == 0:
            assert not bool(schedule.is_random[step])
            continue
        normal = torch.distributions.Normal(torch.from_numpy(expected), sigma)
        logprobs = normal.log_prob(after).flatten(1).mean(1)
        torch.testing.assert_close(schedule.logprobs(after, mean, index), logprobs, rtol=1e-9, atol=1e-9)


def test_steps_of_different_rows_may_differ() -> None:
    schedule = Schedule.of(diffusers.DDIMScheduler(**STABLE_DIFFUSION), steps=5, eta=1.0)
    output, latents, after = torch.randn(3, 4, *SHAPE[1:], dtype=torch.float64)
    index = torch.tensor([3, 0, 4, 1])
    mean = schedule.mean(output, latents, index)
    together = schedule.logprobs(after, mean, index)
    for row, step in enumerate(index.tolist()):
        one = slice(row, row + 1)
        alone = schedule.mean(output[one], latents[one], torch.tensor([step]))
        torch.testing.assert_close(mean[one], alone)
        torch.testing.assert_close(together[one], schedule.logprobs(after[one], alone, torch.tensor([step])))


def test_a_last_step_without_noise_has_logprob_0_and_no_gradient() -> None:
    schedule = Schedule.of(diffusers.DDIMScheduler(), steps=4, eta=1.0)
    assert schedule.sigma[-1] == 0
    assert schedule.is_random.tolist() == [True, True, True, False]
    assert Schedule.of(diffusers.DDIMScheduler(**STABLE_DIFFUSION), steps=50, eta=1.0).sigma[-1] == pytest.approx(
        0.0206, abs=1e-4
    )
    output = torch.ones(1, *SHAPE[1:], dtype=torch.float64, requires_grad=True)
    latents, index = torch.zeros_like(output), torch.tensor([3])
    logprobs = schedule.logprobs(latents, schedule.mean(output, latents, index), index)
    logprobs.sum().backward()
    assert logprobs.tolist() == [0.0]
    assert output.grad is not None
    assert not bool(output.grad.any())
