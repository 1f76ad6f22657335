"""The work of hand_ppo.py done through `rlcore.train`, with nothing but what is public.

    OMP_NUM_THREADS=1 python door_ppo.py FOLDER [--iterations 12] [--seed 0]     prints one line of JSON

An iteration is what lies between two calls of the reward function: learning from one round and sampling the next. The
run therefore takes one step more than it reports.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from figures import Clock, report

import rlcore

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "docs" / "examples"))

from walks import RandomWalks

PPO = {
    "name": "ppo",
    "rollouts": 140,
    "batch_size": 100,
    "epochs": 4,
    "kl_coef": 0.0,
    "gamma": 1.0,
    "lam": 0.95,
    "clip": 0.2,
    "clip_value": 0.2,
    "value_coef": 1.2,
    "optimizer": {"lr": 3e-4, "betas": [0.9, 0.95], "weight_decay": 1e-6},
}


def train(folder: str, *, iterations: int, seed: int, graph_seed: int = 1000) -> dict[str, Any]:
    """Run PPO from the model in `folder` and report as hand_ppo.py does."""
    task, clock = RandomWalks(graph_seed), Clock()
    scores: list[float] = []

    def reward_fn(samples: list[str]) -> list[float]:
        clock.mark()
        rewards = [task.optimality(walk) for walk in samples]
        scores.append(sum(rewards) / len(rewards))
        return rewards

    with TemporaryDirectory() as root:
        result = rlcore.train(
            folder,
            trainer=PPO,
            reward_fn=reward_fn,
            prompts=task.starts * 7,
            gen={"max_new_tokens": 9},
            eval={"at_end": False},
            checkpoint={"at_end": False},
            run={"steps": iterations + 1, "seed": seed, "root": root, "name": "benchmark"},
        )
        rows = [json.loads(line) for line in (result.run_dir / "metrics.jsonl").read_text().splitlines()]
    for row in rows[:-1]:
        for name, value in row.items():
            if name.startswith("time/"):
                clock.phases[name.removeprefix("time/")] = clock.phases.get(name.removeprefix("time/"), 0.0) + value
    return report(scores[:-1], clock)


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", help="where the starting model is")
    parser.add_argument("--graph-seed", type=int, default=1000)
    parser.add_argument("--iterations", type=int, default=12)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    figures = train(options.folder, iterations=options.iterations, seed=options.seed, graph_seed=options.graph_seed)
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
