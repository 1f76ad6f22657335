"""Sampling equals the pipeline of diffusers, and log-probs have the gradient of the equations."""

from __future__ import annotations

import torch
from ddpo_making import make_denoiser

from rlcore_ddpo.denoising import noise_of
from rlcore_ddpo.loss import clipped_loss

TEXTS = ["a cat", "a dog"]


def test_images_are_those_of_the_pipeline_of_diffusers() -> None:
    denoiser = make_denoiser(dtype=torch.float32, steps=4, guidance=2.0, negative_prompt="a cow")
    noise = noise_of([(0, 0, 0), (0, 0, 1)], (5, 4, 4, 4))
    latents, _ = denoiser.sample(TEXTS, noise)
    pipeline, drawn = denoiser.model.pipeline, iter(noise.transpose(0, 1)[1:])
    step = pipeline.scheduler.step

    def step_with_our_noise(output, t, sample, **options):
        return step(output, t, sample, eta=1.0, variance_noise=next(drawn), return_dict=options["return_dict"])

    pipeline.scheduler.step = step_with_our_noise
    pipeline.set_progress_bar_config(disable=True)
    images = pipeline(
        TEXTS, negative_prompt=["a cow"] * 2, num_inference_steps=4, guidance_scale=2.0, latents=noise[:, 0],
        output_type="pt",
    ).images  # fmt: skip
    torch.testing.assert_close(denoiser.model.decode(latents[:, -1]), images, rtol=0, atol=1e-5)


def test_logprobs_are_those_of_sampling() -> None:
    denoiser = make_denoiser(dtype=torch.float32, steps=3, guidance=2.0)
    latents, sampled = denoiser.sample(TEXTS, noise_of([(0,), (1,)], (4, 4, 4, 4)))
    conditions, rows = denoiser.conditions(TEXTS), torch.arange(2)
    for index in (torch.tensor([0, 0]), torch.tensor([2, 1])):
        found = denoiser.logprobs(latents[rows, index], latents[rows, index + 1], index, conditions)
        assert torch.equal(found, sampled[rows, index])


def test_the_gradient_is_that_of_finite_differences_on_a_chain_of_two_steps() -> None:
    denoiser = make_denoiser(steps=2, guidance=2.0)
    latents, old = denoiser.sample(TEXTS, noise_of([(0,), (1,)], (3, 4, 4, 4)).double())
    conditions, advantages = denoiser.conditions(TEXTS), torch.tensor([1.5, -0.5], dtype=torch.float64)
    old = old + torch.tensor([[0.01, -0.02], [0.03, 0.0]])  # inside the clip range, but not at 1

    def loss() -> torch.Tensor:
        steps = (torch.full((2,), step) for step in range(2))
        return sum(
            clipped_loss(
                denoiser.logprobs(latents[:, int(step[0])], latents[:, int(step[0]) + 1], step, conditions),
                old[:, int(step[0])], advantages, clip_range=0.1,
            ).sum() / 4
            for step in steps
        )  # fmt: skip

    loss().backward()
    checked = 0
    for name, weight in denoiser.model.module.named_parameters():
        if not name.endswith(("conv_in.weight", "to_q.weight", "conv_out.bias", "linear_1.weight")):
            continue
        at, size, before = (0,) * weight.dim(), 1e-5, float(weight.data[(0,) * weight.dim()])
        values = []
        for moved in (before + size, before - size):
            weight.data[at] = moved
            values.append(float(loss()))
        weight.data[at] = before
        expected = (values[0] - values[1]) / (2 * size)
        torch.testing.assert_close(float(weight.grad[at]), expected, rtol=1e-5, atol=1e-9)
        checked += expected != 0
    assert checked >= 3


def test_noise_depends_on_the_image_alone() -> None:
    together = noise_of([(0, 1, 0), (0, 1, 1), (0, 2, 1)], (2, 4))
    assert torch.equal(together[1:2], noise_of([(0, 1, 1)], (2, 4)))
    assert not torch.equal(together[1], together[2])


def test_the_text_encoder_runs_once_for_each_prompt() -> None:
    denoiser = make_denoiser(dtype=torch.float32, steps=2, guidance=2.0)
    calls: list[int] = []
    denoiser.model.pipeline.text_encoder.register_forward_hook(lambda *_: calls.append(1))
    for _ in range(3):
        denoiser.sample(TEXTS, noise_of([(0,), (1,)], (3, 4, 4, 4)))
        denoiser.conditions([TEXTS[1]])
    assert len(calls) == 3  # with the negative prompt


def test_every_part_of_an_images_key_gives_it_other_noise() -> None:
    keys = [(3, 1, 2, "a"), (4, 1, 2, "a"), (3, 2, 2, "a"), (3, 1, 3, "a"), (3, 1, 2, "b"), (3, 12, "a"), (31, 2, "a")]
    noise = noise_of(keys, (2,))
    assert len({tuple(row) for row in noise.tolist()}) == len(keys)
    assert torch.equal(noise_of(keys[:1], (2,))[0], noise[0])
