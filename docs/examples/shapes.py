"""Teach a tiny vision-language model to name the colours of shapes: by demonstrations (SFT), then by rewards (GRPO).

    python shapes.py [--family llava] [--seed 0] [--imitation-steps 90] [--steps 120] [--out runs]

The images are drawn here: a circle or a square of one of four colours on a black ground. The model begins with random
weights. A few demonstrations lift it above chance, and GRPO goes on with the reward alone: 1 for the right colour. The
shapes of the images that measure accuracy are at places where none that is trained on is, so no image of both is equal.
`docs/vision.md` has the figures of three seeds.
"""

from __future__ import annotations

import argparse
import random
from typing import Any

import torch
from PIL import Image, ImageDraw

import rlcore
from rlcore_vision.tiny_families import FAMILIES

COLOURS = ("red", "green", "blue", "yellow")
QUESTION = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "what colour is the shape ?"}]}]
SFT = {"name": "sft", "batch_size": 32, "optimizer": {"lr": 1e-3}}
GRPO = {
    "name": "grpo",
    "rollouts": 512,
    "num_generations": 8,
    "kl_coef": 0.0,
    "optimizer": {"lr": 1e-3, "scheduler": "linear"},
}
GEN = {"max_new_tokens": 2}


def draw(randoms: random.Random, colour: str, *, held_out: bool = False, size: int = 16) -> Image.Image:
    """Return an image of a circle or a square of a colour, at one of the places that are held out, or of the others."""
    image = Image.new("RGB", (size, size), "black")
    side = randoms.randrange(size // 3, size // 2 + 1)
    places = [(x, y) for x in range(size - side) for y in range(size - side) if ((x + y) % 3 == 0) == held_out]
    left, top = randoms.choice(places)
    pen = ImageDraw.Draw(image)
    shape = pen.ellipse if randoms.random() < 0.5 else pen.rectangle
    shape([left, top, left + side, top + side], fill=colour)
    return image


def examples(seed: int, count: int, *, held_out: bool = False) -> list[tuple[Image.Image, str]]:
    """Return images with their colours."""
    randoms = random.Random(seed)  # noqa: S311  images are no secrets
    colours = randoms.choices(COLOURS, k=count)
    return [(draw(randoms, colour, held_out=held_out), colour) for colour in colours]


def demonstration(image: Image.Image, colour: str) -> dict[str, Any]:
    """Return a conversation in which the assistant names the colour."""
    return {"images": [image], "messages": [*QUESTION, {"role": "assistant", "content": colour}]}


def question(image: Image.Image, colour: str) -> dict[str, Any]:
    """Return a prompt; the column `answer` is the reward function's."""
    return {"images": [image], "prompt": QUESTION, "answer": colour}


def reward_fn(outputs: list[str], answer: list[str]) -> list[float]:
    """Return 1 for each right colour, and 0 for anything else."""
    return [float(output.strip() == colour) for output, colour in zip(outputs, answer, strict=True)]


def accuracy(policy: Any, held_out: list[tuple[Image.Image, str]]) -> float:
    """Return the share of images whose colour the most likely answer names."""
    outputs = policy.generate([question(*each) for each in held_out], temperature=0.0, **GEN)
    return sum(reward_fn(outputs, [colour for _, colour in held_out])) / len(held_out)


def main() -> None:
    """Train by SFT and GRPO, and print the accuracy on images of which none was trained on."""
    options = parse_options()
    torch.manual_seed(options.seed)
    config, processor = FAMILIES[options.family]()
    shown, asked = examples(options.seed, 64), examples(options.seed + 1, 512)
    held_out = examples(options.seed + 1000, 200, held_out=True)
    assert {image.tobytes() for image, _ in held_out}.isdisjoint(image.tobytes() for image, _ in shown + asked)
    imitation = rlcore.train(
        config,
        tokenizer=processor,
        trainer=SFT,
        samples=[demonstration(*each) for each in shown],
        run={"steps": options.imitation_steps, "seed": options.seed, **folder_of(options.out, "shapes-sft")},
    )
    print(f"after SFT: {accuracy(imitation, held_out):.3f}")
    improved = rlcore.train(
        str(imitation.run_dir / "model"),
        trainer=GRPO,
        reward_fn=reward_fn,
        prompts=[question(*each) for each in asked],
        eval={"show": 0},
        gen=GEN,
        run={"steps": options.steps, "seed": options.seed, **folder_of(options.out, "shapes-grpo")},
    )
    print(f"after GRPO: {accuracy(improved, held_out):.3f} (chance: {1 / len(COLOURS):.2f})")


def folder_of(out: str | None, name: str) -> dict[str, Any]:
    """Return the option of the run's folder; none if the run shall choose it."""
    return {} if out is None else {"root": out, "name": name, "overwrite": True}


def parse_options() -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(description="teach a tiny vision-language model the colours of shapes")
    parser.add_argument("--family", choices=sorted(FAMILIES), default="llava")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--imitation-steps", type=int, default=90)
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--out")
    return parser.parse_args()


if __name__ == "__main__":
    main()
