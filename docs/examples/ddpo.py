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
import tempfile

import torch
from PIL import Image

import rlcore
from rlcore_ddpo.pipeline_loading import make_tiny_pipeline


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
ROUNDS = {"brightness": 30, "compressibility": 70}
OPTIONS = {  # the clip range belongs to the number of elements of the latents
    "brightness": {"rollouts": 32, "batch_size": 8, "guidance": 2.0, "clip_range": 0.02},
    # Without guidance a round costs half as much; a weak signal needs more images for each optimizer step.
    "compressibility": {"rollouts": 64, "batch_size": 32, "guidance": 1.0, "clip_range": 0.006},
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
        make_tiny_pipeline(seed=given.seed, size=SIZES[given.reward]),
        trainer={"name": "ddpo", "steps": 4, "optimizer": {"lr": 3e-3}, **OPTIONS[given.reward]},
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
