"""Learn the random walks with the defaults of a trainer, and print the mean reward before and after.

    python defaults.py TRAINER [--graph-seed 7] [--seed 0] [--steps N] [--epochs 15] [--lr RATE] [--of 2] [--out runs]

TRAINER is `grpo`, `rloo` (`grpo` with `preset: rloo`), `ppo`, `rft`, `dpo`, `online_dpo` or `ilql`. The task is that of
`walks.py`, the reward the optimality of a walk, at most 1. All options of the trainer have their defaults; set by hand
are the number of steps (STEPS), the 9 new tokens of a walk and the imitation before it: 15 epochs of SFT at a learning
rate of 1e-3, batches of 100, seed 0. `ppo` gets each of the 20 starts seven times, since its rounds have 128 responses;
with each start once graph 7 ends at .974 instead of .987. `ilql` begins from random weights, and learns from the 1000
walks of the task. `dpo` learns from 9600 pairs of walks that the model samples after imitation: two walks from the same
start, or, with `--of 4`, the best of four and one of the others. The table of docs/training.md, "Learning rates by the
size of the model", has the results.
"""

from __future__ import annotations

import argparse
import json
import random
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM
from walks import END_ID, PAD_ID, RandomWalks, model_config, task, tokenizer

import rlcore

STEPS = {"grpo": 160, "rloo": 160, "ppo": 80, "rft": 64, "dpo": 300, "online_dpo": 160, "ilql": 600}
GEN = {"max_new_tokens": 9}
NUM_PAIRS, WALKS_OF_A_START = 9600, 240


def main() -> None:
    """Train, and print the rewards."""
    options = parse_options()
    graph = task(options.graph_seed)

    def reward_fn(samples: list[str]) -> list[float]:
        return [graph.optimality(walk) for walk in samples]

    def run(name: str, seed: int, **budget: int) -> dict[str, Any]:
        return {"root": str(options.out), "name": name, "seed": seed, "overwrite": True, **budget}

    model: Any = model_config()
    inputs: dict[str, Any] = {"samples": graph.walks, "rewards": reward_fn(graph.walks)}
    if options.trainer != "ilql":
        imitation = rlcore.train(
            model,
            tokenizer=tokenizer(),
            trainer={"name": "sft", "batch_size": 100, "optimizer": {"lr": 1e-3}},
            samples=graph.walks,
            run=run(f"imitation-{options.graph_seed}", 0, epochs=options.epochs),
        )
        each = 7 if options.trainer == "ppo" else 1
        model, inputs = str(imitation.run_dir / "model"), {"prompts": graph.starts * each}
        if options.trainer == "dpo":
            inputs = {"samples": pairs_of(sampled_walks(model, graph), graph, size=options.of)}
    name, steps = options.trainer, options.steps or STEPS[options.trainer]
    trainer: dict[str, Any] = {"name": "grpo", "preset": "rloo"} if name == "rloo" else {"name": name}
    if options.lr is not None:
        trainer["optimizer"] = {"lr": options.lr}
    result = rlcore.train(
        model,
        tokenizer=tokenizer(),
        trainer=trainer,
        **inputs,
        reward_fn=reward_fn,  # with samples at evaluations only
        eval_prompts=graph.starts * 50,
        eval={"at_start": True, "show": 0, "batch_size": 1000},
        gen=GEN,
        run=run(f"defaults-{name}", options.seed, steps=steps),
    )
    lines = (result.run_dir / "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    before, after = (row["eval/reward/mean"] for row in map(json.loads, lines) if "eval/reward/mean" in row)
    print(
        f"{name}, graph {options.graph_seed}, seed {options.seed}: {before:.3f} before, {after:.3f} after {steps} steps"
    )


def parse_options() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trainer", choices=sorted(STEPS))
    parser.add_argument("--graph-seed", type=int, default=7, help="of the graph and the walks")
    parser.add_argument("--seed", type=int, default=0, help="of the training after imitation")
    parser.add_argument("--epochs", type=int, default=15, help="of imitation")
    parser.add_argument("--steps", type=int, help="of the trainer; default: those of the table")
    parser.add_argument("--lr", type=float, help="a fixed learning rate instead of the default")
    parser.add_argument("--of", type=int, default=2, help="walks of which a pair of dpo has the best and another one")
    parser.add_argument("--out", type=Path, default=Path("runs"), help="folder that holds the runs")
    return parser.parse_args()


def sampled_walks(folder: str, graph: RandomWalks) -> list[str]:
    """Sample walks from each start with `transformers` alone."""
    torch.manual_seed(0)
    model: Any = AutoModelForCausalLM.from_pretrained(folder)
    words = tokenizer()
    walks: list[str] = []
    for start in graph.starts:
        tokens = model.generate(
            torch.full((WALKS_OF_A_START, 1), ord(start) - ord("a")), do_sample=True, top_k=0, pad_token_id=PAD_ID,
            eos_token_id=END_ID, **GEN,
        )  # fmt: skip
        walks += words.batch_decode(tokens, skip_special_tokens=True)
    return walks


def pairs_of(walks: list[str], graph: RandomWalks, *, size: int = 2) -> list[dict[str, str]]:
    """Draw pairs of walks with different optimality: the best of `size` walks from a start, and one of the others.

    Raises:
        SystemExit: all walks from each start are equally good, so that there are no pairs.
    """
    generator = random.Random(0)  # noqa: S311  (no secret)
    by_start = {start: [walk for walk in walks if walk[0] == start and len(walk) > 1] for start in graph.starts}
    if all(len({graph.optimality(walk) for walk in each}) < 2 for each in by_start.values()):
        raise SystemExit(
            "dpo: the sampled walks from each start are equally good, so there are no pairs: choose another "
            "--graph-seed, or more --epochs of imitation"
        )
    pairs: list[dict[str, str]] = []
    while len(pairs) < NUM_PAIRS:
        start = generator.choice(graph.starts)
        if not by_start[start]:
            continue
        drawn = [generator.choice(by_start[start]) for _ in range(size)]
        *others, chosen = sorted(drawn, key=graph.optimality)
        rejected = generator.choice(others) if size > 2 else others[0]
        if graph.optimality(rejected) < graph.optimality(chosen):
            pairs.append({"prompt": start, "chosen": chosen[1:], "rejected": rejected[1:]})
    return pairs


if __name__ == "__main__":
    main()
