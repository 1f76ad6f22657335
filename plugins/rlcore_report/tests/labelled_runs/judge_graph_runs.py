"""Train good and broken runs of another task, the walks of docs/examples/randomwalks.py, and print their verdicts.

    OMP_NUM_THREADS=1 python judge_graph_runs.py FOLDER [--graphs 77 78 79]

The rules have been changed for the runs of these three graphs; those of any other graph measure them. The model has 1.7
million parameters. The runs stay in the folder. Those of a graph take ten minutes on a busy core.
"""

from __future__ import annotations

import argparse
import os
import random
import runpy
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import rlcore
from rlcore_report.answer import judged
from rlcore_report.health import judged_run as causes
from rlcore_report.run_record import read_run

EXAMPLES = Path(__file__).resolve().parents[4] / "docs" / "examples"
GRAPHS = (77, 78, 79)
SEED_OF = 72
"""What the seed of a graph exceeds that of its runs by."""
Reward = Callable[[Sequence[str]], list[float]]


def runs(example: Mapping[str, Any], graph: Any, model: str) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Yield the name of each run, what is wrong with it, and the arguments of `rlcore.train`."""
    cut, noise = len(graph.walks) * 9 // 10, random.Random(3)
    yield "sft-graph", "", {
        "model": example["model_config"](), "tokenizer": example["tokenizer"](), "samples": graph.walks[:cut],
        "trainer": {"name": "sft", "batch_size": 50, "optimizer": {"lr": 1e-3}}, "eval_samples": graph.walks[cut:],
        "eval": {"at_start": True, "every": 10}, "run": {"steps": 120},
    }  # fmt: skip

    def optimality(walks: Sequence[str]) -> list[float]:
        return [graph.optimality(walk) for walk in walks]

    def online(trainer: Mapping[str, Any], reward_fn: Reward = optimality) -> dict[str, Any]:
        return {
            "model": model, "trainer": trainer, "prompts": graph.starts * 7, "eval_prompts": graph.starts * 5,
            "reward_fn": reward_fn, "gen": example["GEN"], "run": {"steps": 25},
            "eval": {"at_start": True, "every": 5, "show": 0, "batch_size": 200},
        }  # fmt: skip

    def ppo(lr: float = 5e-4) -> dict[str, Any]:
        optimizer = {**example["PPO"]["optimizer"], "lr": lr}
        return {**example["PPO"], "optimizer": optimizer, "rollouts": 210, "batch_size": 70}

    def grpo(lr: float = 1e-3, **options: Any) -> dict[str, Any]:
        return {"name": "grpo", "rollouts": 200, "num_generations": 10, "optimizer": {"lr": lr}, **options}

    yield "ppo-graph", "", online(ppo())
    yield "ppo-graph-constant", causes.CONSTANT, online(ppo(), lambda walks: [0.0 for _ in walks])
    yield "ppo-graph-noise", causes.UNRELATED, online(ppo(), lambda walks: [noise.random() for _ in walks])
    yield "ppo-graph-rate-100x", causes.TOO_LARGE, online(ppo(5e-2))
    yield "ppo-graph-rate-10x", causes.TOO_LARGE, online(ppo(5e-3))
    yield "grpo-graph", "", online(grpo(kl_coef=0.0))
    yield "grpo-graph-default-rate", causes.TOO_SMALL, online(grpo(1e-6))
    yield "grpo-graph-rate-30x", causes.TOO_LARGE, online(grpo(3e-2, kl_coef=0.0))
    yield "rft-graph", "", online({"name": "rft", "optimizer": {"lr": 1e-3}})


def main() -> None:
    """Train the runs that the folder does not have, and print the first problem of each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--graphs", type=int, nargs="+", default=GRAPHS)
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    os.chdir(given.folder)
    sys.path.append(str(EXAMPLES))
    sys.argv = ["randomwalks.py"]
    example = runpy.run_path(str(EXAMPLES / "randomwalks.py"))
    for graph in given.graphs:
        root = Path(f"graph-{graph}")
        for name, cause, arguments in runs(example, example["task"](graph), f"{root}/sft-graph/model"):
            if not (root / name).exists():
                arguments["run"] |= {"seed": graph - SEED_OF, "root": str(root), "name": name, "report": False}
                rlcore.train(arguments.pop("model"), **arguments)
            found = next((each for each in judged(read_run(root / name)) if each.level != "good"), None)
            is_right = (found.cause if found else "") == cause
            print(f"{'' if is_right else 'WRONG '}{root / name}: {cause or 'good'}: {found or 'no problem'}")


if __name__ == "__main__":
    main()
