"""DDPO without a download: a small pipeline with random weights learns to paint brighter, or more compressible, images.

    python docs/examples/ddpo.py                                    about a minute on a CPU
    python docs/examples/ddpo.py --reward jpeg_compressibility
    python docs/examples/ddpo.py --control                          rewards of other images: nothing is learned

The same images are sampled before and after training, with the same noise; the rise is the mean of their differences.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import tempfile

import torch

import rlcore
from rlcore_ddpo import image_rewards
from rlcore_ddpo.tiny_pipeline import make_tiny_pipeline

REWARDS = {"brightness": image_rewards.brightness, "jpeg_compressibility": image_rewards.jpeg_compressibility}


def main() -> float:
    """Train, and return the rise of the reward in standard errors."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--reward", choices=REWARDS, default="brightness")
    parser.add_argument("--control", action="store_true", help="give each image the reward of another one")
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    reward = REWARDS[given.reward]

    def of_another(images: torch.Tensor) -> list[float]:
        return reward(images.roll(1, 0))

    result = rlcore.train(
        make_tiny_pipeline(size=4 if given.reward == "brightness" else 8, seed=given.seed),
        trainer={
            "name": "ddpo", "rollouts": 32, "batch_size": 8, "steps": 4, "guidance": 2.0,
            "clip_range": 0.02, "optimizer": {"lr": 3e-3},
        },
        prompts=["a cat", "a dog"],
        reward_fn=of_another if given.control else reward,
        metric_fn=lambda images: {given.reward: reward(images)},
        eval={"at_start": True, "samples": 64, "show": 0},
        run={"steps": given.rounds, "seed": given.seed, "root": tempfile.mkdtemp()},
    )  # fmt: skip
    lines = (result.run_dir / "completions.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [json.loads(line) for line in lines]
    first, last = ([row[given.reward] for row in rows if row["step"] == step] for step in (0, given.rounds))
    rises = [after - before for before, after in zip(first, last, strict=True)]
    rise, error = statistics.mean(rises), statistics.stdev(rises) / math.sqrt(len(rises))
    print(
        f"{given.reward}: {statistics.mean(first):.4f} -> {statistics.mean(last):.4f}, a rise of {rise:.4f}, or "
        f"{rise / error:.1f} standard errors\nimages: {result.run_dir / 'images'}"
    )
    return rise / error


if __name__ == "__main__":
    main()
