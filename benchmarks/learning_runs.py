"""PPO, GRPO or RLOO on random walks with the settings of docs/examples, to the end, for several graphs and seeds.

    OMP_NUM_THREADS=1 python learning_runs.py FOLDER [--graph-seeds 9 13] [--seeds 0 1 2] [--iterations 25]
    OMP_NUM_THREADS=1 python learning_runs.py FOLDER --trainer grpo --iterations 40

A line is printed for each run: the first iteration at which the mean optimality of three iterations reached .95, the
CPU seconds until then, and the mean optimality of 1000 walks sampled after the last iteration. The last line of output
is JSON: the medians, and how many runs reached .95 and how many ended there. FOLDER keeps one starting model per graph,
which hand_ppo.py makes. The settings are those of randomwalks.py for PPO, and of randomwalks_grpo.yaml for GRPO and
RLOO; `--set trainer.target_kl=0.1` changes an option.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from types import MappingProxyType
from typing import Any

import torch
import yaml
from transformers.utils import logging

import rlcore
from benchmarks.example import ppo_options
from benchmarks.figures import Clock, report
from benchmarks.hand_ppo import make_base
from benchmarks.places import EXAMPLES
from benchmarks.run_options import merged, nested
from benchmarks.tasks import load_task

SAMPLES_AT_END = 50
LEVEL, FIRST = 0.95, ("iterations_to_95", "cpu_s_to_95")


def trainer_options(name: str) -> dict[str, Any]:
    """Return the options of the example for `ppo`, `grpo` or `rloo`."""
    if name == "ppo":
        return ppo_options()
    grpo: dict[str, Any] = yaml.safe_load((EXAMPLES / "randomwalks_grpo.yaml").read_text(encoding="utf-8"))["trainer"]
    return grpo | {"preset": "rloo", "kl_coef": 0.0} if name == "rloo" else grpo


def learn(
    folder: Path,
    *,
    graph_seed: int,
    seed: int,
    iterations: int,
    trainer: str = "ppo",
    options: Mapping[str, Any] = MappingProxyType({}),
) -> dict[str, Any]:
    """Train on one graph, and return the report of figures.py with the optimality at the end as `end_score`."""
    base = folder / f"graph-{graph_seed}"
    if not base.exists():
        make_base(str(base), graph_seed=graph_seed)
    task, clock = load_task("walks", graph_seed=graph_seed), Clock()
    scores: list[float] = []

    def reward_fn(samples: list[str]) -> list[float]:
        clock.mark()
        rewards = [task.score(walk) for walk in samples]
        scores.append(sum(rewards) / len(rewards))
        return rewards

    with TemporaryDirectory() as root:
        result = rlcore.train(
            {"path": str(base), **options.get("model", {})},
            trainer=merged(trainer_options(trainer), options.get("trainer", {})),
            reward_fn=reward_fn,
            prompts=task.prompts * (task.samples if trainer == "ppo" else 1),
            gen={"max_new_tokens": task.max_new_tokens},
            eval={"at_end": False},
            checkpoint={"at_end": False},
            loggers=[],
            run={"steps": iterations, "seed": seed, "root": root, "name": "learning"},
        )
    clock.mark()
    figures = report(scores, clock)
    starts = task.prompts * SAMPLES_AT_END
    walks = [start + rest for start, rest in zip(starts, result.generate(starts), strict=True)]
    return figures | {"end_score": round(sum(map(task.score, walks)) / len(walks), 4)}


def summary(runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return medians over the runs, the lowest end, and the number of runs that reached .95 and that ended there.

    A run that never reached .95 counts as the slowest.
    """
    never = math.inf
    return {
        "runs": len(runs),
        "reached": sum(run["cpu_s_to_95"] is not None for run in runs),
        "ended_there": sum(run["end_score"] >= LEVEL for run in runs),
        **{name: _finite(median(never if run[name] is None else run[name] for run in runs)) for name in FIRST},
        "end_score": median(run["end_score"] for run in runs),
        "lowest_end_score": min(run["end_score"] for run in runs),
        "cpu_s_per_iteration": median(run["cpu_s_per_iteration"] for run in runs),
        "peak_rss_mb": max(run["peak_rss_mb"] for run in runs),
    }


def _finite(number: float) -> float | None:
    return number if math.isfinite(number) else None


def main() -> None:
    """Parse the command line, train, and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, help="where the starting models are, or go")
    parser.add_argument("--trainer", default="ppo", choices=["ppo", "grpo", "rloo"])
    parser.add_argument("--graph-seeds", type=int, nargs="+", default=[1000])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--iterations", type=int, default=25)
    parser.add_argument("--set", action="append", default=[], metavar="OPTION=VALUE", help="an option of the run")
    options = parser.parse_args()
    torch.set_num_threads(1)
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    changes, runs = nested(options.set), []
    for graph_seed in options.graph_seeds:
        for seed in options.seeds:
            run = learn(
                options.folder, graph_seed=graph_seed, seed=seed, iterations=options.iterations,
                trainer=options.trainer, options=changes,
            )  # fmt: skip
            runs.append(run)
            print(
                f"graph {graph_seed}, seed {seed}: .95 at iteration {run['iterations_to_95']} after "
                f"{run['cpu_s_to_95']} CPU s, end {run['end_score']}, {run['cpu_s_per_iteration']} CPU s per iteration",
                flush=True,
            )
    print(json.dumps(summary(runs)))


if __name__ == "__main__":
    main()
