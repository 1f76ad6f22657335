"""Train the runs that the pictures of the report and of the dashboard show, in `runs` of a folder.

    python plugins/rlcore_report/tests/pictured_runs.py FOLDER

Where FOLDER/runs has a run already, it is kept. `randomwalks-sft` and `randomwalks-ppo` are those of
docs/examples/randomwalks.py. The others train from the former: GRPO, PPO with a learning rate that is 100 times as
large and one that is a 5,000th, and PPO at two learning rates with three seeds each. All take a few minutes on one
core.
"""

from __future__ import annotations

import os
import runpy
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs

import rlcore

EXAMPLES = Path(__file__).resolve().parents[3] / "docs" / "examples"
EVALUATED = 10
"""Samples from each start in an evaluation of the runs that are compared."""


@attrs.frozen
class Pictured:
    """A run: its folder's name, its trainer with its options, its steps and its seed."""

    name: str
    trainer: Mapping[str, Any]
    steps: int
    seed: int = 0


def pictured(ppo: Mapping[str, Any]) -> list[Pictured]:
    """Return the runs that start from the imitated walks, given the options of PPO in the example."""

    def at(lr: float) -> dict[str, Any]:
        return {**ppo, "optimizer": {**ppo["optimizer"], "lr": lr}}

    grpo = {"name": "grpo", "rollouts": 400, "num_generations": 20, "kl_coef": 0.0, "optimizer": {"lr": 1e-3}}
    return [
        Pictured("randomwalks-grpo", grpo, 20),
        Pictured("randomwalks-ppo-lr-100x", at(5e-2), 15),
        Pictured("randomwalks-ppo-lr-tiny", at(1e-7), 12),
        *(Pictured(f"lr-{lr:.0e}".replace("e-0", "e-") + f"-seed-{seed}", at(lr), 10, seed)
          for lr in (1e-4, 5e-4) for seed in range(3)),
    ]  # fmt: skip


def main(folder: Path) -> None:
    """Train the runs that the folder does not have."""
    os.chdir(folder)  # so that reports name `runs/...`
    sys.path.append(str(EXAMPLES))
    sys.argv = ["randomwalks.py"]
    example = runpy.run_path(str(EXAMPLES / "randomwalks.py"))
    if not Path("runs/randomwalks-ppo").exists():
        example["main"]()
    graph = example["task"](1000)
    for run in pictured(example["PPO"]):
        if Path("runs", run.name).exists():
            continue
        rlcore.train(
            "runs/randomwalks-sft/model",
            trainer=dict(run.trainer),
            prompts=graph.starts * 7,
            eval_prompts=graph.starts * EVALUATED,
            reward_fn=lambda samples: [graph.optimality(walk) for walk in samples],
            gen=example["GEN"],
            eval={"at_start": True, "show": 0, "batch_size": 1000},
            run={"steps": run.steps, "seed": run.seed, "root": "runs", "name": run.name},
        )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
