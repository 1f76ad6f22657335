"""The workload of hand_ppo.py through `rlcore.train`, with the public API only; with `--trainer grpo`, that of GRPO.

    OMP_NUM_THREADS=1 python train_ppo.py FOLDER [--iterations 12] [--seed 0]     prints one line of JSON
    OMP_NUM_THREADS=1 python train_ppo.py FOLDER --task reviews --data DATA       the same on another task (tasks.py)

An iteration is the time between two calls of the reward function: learning from one round and sampling the next. The
run therefore takes one step more than it reports.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType
from typing import Any

import torch
import transformers

import rlcore
from benchmarks.figures import Clock, above_imports, after_imports, report
from benchmarks.run_options import merged, nested
from benchmarks.tasks import Task, load_task

PPO = {
    "name": "ppo",
    "batch_size": 100,
    "epochs": 4,
    "gamma": 1.0,
    "lam": 0.95,
    "clip": 0.2,
    "clip_value": 0.2,
    "target_kl": None,  # every round makes all its epochs, as by hand
    "value_coef": 1.2,
    "optimizer": {"lr": 3e-4, "betas": [0.9, 0.95], "weight_decay": 1e-6, "max_grad_norm": 0.0},
}
GRPO = {
    "name": "grpo",
    "iterations": 4,
    "minibatches": 2,
    "optimizer": PPO["optimizer"],
}


def trainer_options(name: str, task: Task) -> dict[str, Any]:
    """Return the options of PPO, or of GRPO with groups of `task.samples`, for rounds of a task's size."""
    if name == "grpo":
        return {**GRPO, "rollouts": task.rollouts, "num_generations": task.samples}
    return {**PPO, "rollouts": task.rollouts}


def train(
    folder: str,
    task: Task,
    *,
    iterations: int,
    seed: int,
    trainer: str = "ppo",
    kl_coef: float = 0.0,
    options: Mapping[str, Any] = MappingProxyType({}),
) -> dict[str, Any]:
    """Train the model in `folder`, with `options` merged in, and return the same report as hand_ppo.py."""
    clock = Clock()
    scores: list[float] = []

    def reward_fn(samples: list[str]) -> list[float]:
        clock.mark()
        rewards = [task.score(text) for text in samples]
        scores.append(sum(rewards) / len(rewards))
        return rewards

    with TemporaryDirectory() as root:
        result = rlcore.train(
            {"path": folder, **options.get("model", {})},
            trainer=merged({**trainer_options(trainer, task), "kl_coef": kl_coef}, options.get("trainer", {})),
            sampler={"name": "default", **options.get("sampler", {})},
            reward_fn=reward_fn,
            prompts=task.prompts if trainer == "grpo" else task.prompts * task.samples,
            gen={"max_new_tokens": task.max_new_tokens, **options.get("gen", {})},
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
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", help="where the starting model is")
    parser.add_argument("--task", default="walks", choices=["walks", "reviews"])
    parser.add_argument("--data", type=Path, help="folder of the reviews")
    parser.add_argument("--trainer", default="ppo", choices=["ppo", "grpo"])
    parser.add_argument("--graph-seed", type=int, default=1000, help="of the walks")
    parser.add_argument("--iterations", type=int, default=12)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kl-coef", type=float, default=0.0, help="above 0 a reference is asked too")
    parser.add_argument("--set", action="append", default=[], metavar="OPTION=VALUE", help="an option of the run")
    options = parser.parse_args()
    torch.set_num_threads(1)
    _ = rlcore.train, transformers.GPT2LMHeadModel  # imported on first use
    imports = after_imports()
    task = load_task(options.task, options.data, graph_seed=options.graph_seed)
    figures = train(
        options.folder, task, iterations=options.iterations, seed=options.seed, trainer=options.trainer,
        kl_coef=options.kl_coef, options=nested(options.set),
    )  # fmt: skip
    print(json.dumps(above_imports(figures, imports)))


if __name__ == "__main__":
    main()
