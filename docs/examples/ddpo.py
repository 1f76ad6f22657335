"""DDPO without a download: a small pipeline with random weights learns to paint brighter, or more compressible, images.

    python docs/examples/ddpo.py                            half a minute of a CPU
    python docs/examples/ddpo.py --reward compressibility   a minute
    python docs/examples/ddpo.py --control                  each image gets the reward of another one

The same images are sampled before and after training, with the same noise; the rise is the mean of their differences.
"""

from __future__ import annotations

import argparse
import io
import json
import math
import statistics
import string
import tempfile

import torch
from diffusers import AutoencoderKL, DDIMScheduler, StableDiffusionPipeline, UNet2DConditionModel
from PIL import Image
from transformers import CLIPTextConfig, CLIPTextModel, CLIPTokenizer

import rlcore

WIDTH, MAX_TOKENS = 16, 16


def make_pipeline(seed: int, size: int) -> StableDiffusionPipeline:
    """Return a StableDiffusionPipeline with random weights: latents of 4 * size * size, images of twice that side."""
    torch.manual_seed(seed)
    letters = [*string.ascii_lowercase, *(f"{letter}</w>" for letter in string.ascii_lowercase)]
    vocabulary = {token: i for i, token in enumerate([*letters, "<|startoftext|>", "<|endoftext|>"])}
    text_encoder = CLIPTextModel(CLIPTextConfig(
        vocab_size=54, hidden_size=WIDTH, intermediate_size=2 * WIDTH, num_attention_heads=2, num_hidden_layers=1,
        max_position_embeddings=MAX_TOKENS, bos_token_id=52, eos_token_id=53, pad_token_id=53,
    ))  # fmt: skip
    unet = UNet2DConditionModel(
        sample_size=size, block_out_channels=(16, 32), layers_per_block=1, in_channels=4, out_channels=4,
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"), up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
        cross_attention_dim=WIDTH, attention_head_dim=4, norm_num_groups=4,
    )  # fmt: skip
    vae = AutoencoderKL(
        sample_size=2 * size, block_out_channels=(8, 16), latent_channels=4, norm_num_groups=4,
        down_block_types=("DownEncoderBlock2D",) * 2, up_block_types=("UpDecoderBlock2D",) * 2,
    )  # fmt: skip
    scheduler = DDIMScheduler(
        beta_start=0.00085, beta_end=0.012, beta_schedule="scaled_linear", steps_offset=1, clip_sample=False,
        set_alpha_to_one=False,
    )  # fmt: skip
    return StableDiffusionPipeline(
        unet=unet, vae=vae, text_encoder=text_encoder, scheduler=scheduler, safety_checker=None, feature_extractor=None,
        tokenizer=CLIPTokenizer(vocab=vocabulary, merges=[], model_max_length=MAX_TOKENS),
        requires_safety_checker=False,
    )  # fmt: skip


def brightness(images: torch.Tensor) -> list[float]:
    """Return the mean over the pixels of each image; registered as `brightness`."""
    return [float(image.mean()) for image in images]


def compressibility(images: torch.Tensor) -> list[float]:
    """Return minus the size of each image as a JPEG file, in kB; registered as `jpeg_compressibility`."""
    sizes = []
    for image in (images * 255).round().byte().permute(0, 2, 3, 1):
        file = io.BytesIO()
        Image.fromarray(image.numpy()).save(file, format="JPEG", quality=95)
        sizes.append(file.tell() / 1000)
    return [-size for size in sizes]


REWARDS = {"brightness": brightness, "compressibility": compressibility}
SIZES = {"brightness": 4, "compressibility": 8}
ROUNDS = {"brightness": 30, "compressibility": 50}
OPTIONS = {  # the clip range belongs to the number of elements of the latents
    "brightness": {"clip_range": 0.02, "optimizer": {"lr": 3e-3}},
    "compressibility": {"clip_range": 0.006, "optimizer": {"lr": 1e-3}},
}


def main() -> None:
    """Train, and print the rise of the reward."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--reward", choices=REWARDS, default="brightness")
    parser.add_argument("--control", action="store_true")
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    reward, rounds = REWARDS[given.reward], given.rounds or ROUNDS[given.reward]

    def of_another(images: torch.Tensor) -> list[float]:
        return reward(images.roll(1, 0))

    result = rlcore.train(
        make_pipeline(given.seed, SIZES[given.reward]),
        trainer={
            "name": "ddpo", "rollouts": 32, "batch_size": 8, "steps": 4, "guidance": 2.0, **OPTIONS[given.reward],
        },
        prompts=["a cat", "a dog"],
        reward_fn=of_another if given.control else reward,
        gen={"batch_size": 32},
        eval={"at_start": True, "samples": 64, "show": 0},
        run={"steps": rounds, "seed": given.seed, "root": tempfile.mkdtemp()},
    )  # fmt: skip
    lines = (result.run_dir / "completions.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line) for line in lines]
    first, last = ([row["reward"] for row in rows if row["step"] == step] for step in (0, rounds))
    rises = [after - before for before, after in zip(first, last, strict=True)]
    rise, error = statistics.mean(rises), statistics.stdev(rises) / math.sqrt(len(rises))
    print(
        f"{given.reward}: {statistics.mean(first):.4f} -> {statistics.mean(last):.4f}, a rise of {rise:.4f}, or "
        f"{rise / error:.1f} standard errors\nimages: {result.run_dir / 'images'}"
    )


if __name__ == "__main__":
    main()
