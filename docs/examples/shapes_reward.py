"""Train a reward model on pairs of answers about shapes, then a policy by GRPO with the scores of this model alone.

    python shapes_reward.py [--seed 0] [--reward-steps 600] [--imitation-steps 90] [--steps 120] [--out runs]

The images, and the demonstrations that the policy begins with, are those of `shapes.py`. A pair has the right colour
and another one. `docs/vision.md` has the figures of three seeds.
"""

from __future__ import annotations

import argparse
import json
import random
from pathlib import Path
from typing import Any

import torch
from shapes import COLOURS, GEN, GRPO, QUESTION, SFT, accuracy, demonstration, examples, folder_of, question

import rlcore
from rlcore_vision.tiny_families import FAMILIES

REWARD = {"name": "reward", "batch_size": 32, "optimizer": {"lr": 1e-3}}


def pairs(shown: list[Any], seed: int) -> list[dict[str, Any]]:
    """Return a row for each image: its colour as the chosen answer, and another colour as the rejected one."""
    randoms, rows = random.Random(seed), []  # noqa: S311  no secrets
    for image, colour in shown:
        wrong = randoms.choice([each for each in COLOURS if each != colour])
        answers = {"chosen": colour, "rejected": wrong}
        said = {name: [{"role": "assistant", "content": text}] for name, text in answers.items()}
        rows.append({"images": [image], "prompt": QUESTION, **said})
    return rows


def train_reward_model(options: argparse.Namespace, held_out: list[Any]) -> Path:
    """Train a reward model, print its accuracy on pairs that are held out, and return its folder."""
    config, processor = FAMILIES["llava"]()
    judge = rlcore.train(
        {"path": config, "architecture": "vision_scorer"},
        tokenizer=processor,
        trainer=REWARD,
        samples=pairs(examples(options.seed, 512), options.seed),
        eval_samples=pairs(held_out, options.seed + 1),
        eval={"at_start": True, "every": 100},
        run={"steps": options.reward_steps, "seed": options.seed, **folder_of(options.out, "shapes-judge")},
    )
    lines = [json.loads(line) for line in (judge.run_dir / "metrics.jsonl").read_text().splitlines()]
    found = [line["eval/reward/accuracy"] for line in lines if "eval/reward/accuracy" in line]
    print(f"reward model: accuracy on pairs {found[0]:.3f} -> {found[-1]:.3f}")
    return Path(judge.run_dir, "model")


def main() -> None:
    """Train the reward model and the policy, and print the policy's accuracy before and after GRPO."""
    options = parse_options()
    torch.manual_seed(options.seed)
    held_out = examples(options.seed + 1000, 200, held_out=True)
    judge = train_reward_model(options, held_out)
    torch.manual_seed(options.seed)
    config, processor = FAMILIES["llava"]()
    imitation = rlcore.train(
        config,
        tokenizer=processor,
        trainer=SFT,
        samples=[demonstration(*each) for each in examples(options.seed, 64)],
        run={"steps": options.imitation_steps, "seed": options.seed, **folder_of(options.out, "shapes-sft")},
    )
    print(f"after SFT: {accuracy(imitation, held_out):.3f}")
    words = [*COLOURS, processor.tokenizer.eos_token]
    improved = rlcore.train(
        str(imitation.run_dir / "model"),
        trainer=GRPO,
        reward_fn={"fn": "vision_reward_model", "path": str(judge)},
        prompts=[question(*each) for each in examples(options.seed + 1, 512)],
        eval={"show": 0},
        gen=GEN,
        sampler={"name": "default", "allowed_tokens": processor.tokenizer.convert_tokens_to_ids(words)},
        run={"steps": options.steps, "seed": options.seed, **folder_of(options.out, "shapes-judged")},
    )
    print(f"after GRPO: {accuracy(improved, held_out):.3f} (chance: {1 / len(COLOURS):.2f})")


def parse_options() -> argparse.Namespace:
    """Return the options of the command line."""
    parser = argparse.ArgumentParser(description="train a reward model about shapes, and a policy with its scores")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--reward-steps", type=int, default=600)
    parser.add_argument("--imitation-steps", type=int, default=90)
    parser.add_argument("--steps", type=int, default=120)
    parser.add_argument("--out")
    return parser.parse_args()


if __name__ == "__main__":
    main()
