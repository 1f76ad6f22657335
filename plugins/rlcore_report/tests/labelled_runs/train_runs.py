"""Train the labelled runs again and write their metrics to runs/.

    OMP_NUM_THREADS=1 python train_runs.py [--only ppo] [--seeds 0 1 2 ... 9]

The rules were made on the runs of seeds 0 to 8. Those of seed 9, of another model and other rows, measure them. The
scenarios of other_scenarios.py have fewer seeds.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from labelled import RUNS, write_run
from other_scenarios import OTHER_BROKEN, OTHER_GOOD
from scenarios import BROKEN, GOOD, Scenario, is_worse

import rlcore
from rlcore.config import load_yaml
from rlcore.errors import RLCoreError
from rlcore_testing.small import make_tokenizer


def train(scenario: Scenario, seed: int, folder: Path) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Train one run in a folder; return the rows of its metrics and its configuration.

    A run that diverges has the rows until then.
    """
    arguments = {"tokenizer": make_tokenizer(), **scenario.make(seed)}
    arguments["run"] = {
        **arguments["run"], "seed": seed, "name": "run", "root": str(folder), "report": False, "rollouts": "none",
        "check_functions": False,
    }  # fmt: skip
    try:
        rlcore.train(
            **arguments, loggers=[], checkpoint={"at_end": False}, observers=[make() for make in scenario.observers]
        )
    except RLCoreError as error:
        print(f"  ended with {type(error).__name__}: {str(error)[:200]}")
    lines = (folder / "run" / "metrics.jsonl").read_text().splitlines()
    return [json.loads(line) for line in lines], load_yaml(folder / "run" / "config.yaml")


def main() -> None:
    """Train what the arguments name."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="part of the names of the runs to train")
    parser.add_argument("--seeds", type=int, nargs="+", default=list(range(10)))
    given = parser.parse_args()
    scenarios = (*GOOD, *OTHER_GOOD, *BROKEN, *OTHER_BROKEN)
    needed = {each.worse_than for each in scenarios if given.only in each.name}
    torch.set_num_threads(1)
    for seed in given.seeds:
        trained: dict[str, list[dict[str, Any]]] = {}
        for scenario in scenarios:
            if given.only in scenario.name or scenario.name in needed:
                started = time.perf_counter()
                with TemporaryDirectory() as folder:
                    rows, config = train(scenario, seed, Path(folder))
                trained[scenario.name] = rows
                cause = scenario.cause
                if scenario.worse_than and not is_worse(rows, trained[scenario.worse_than]):
                    cause = ""
                about = {"scenario": scenario.name, "seed": seed, "cause": cause, "made": "trained"}
                write_run(RUNS / f"{scenario.name}-{seed}.jsonl", about, rows, config)
                print(f"{scenario.name}-{seed}: {len(rows)} rows in {time.perf_counter() - started:.1f} s", flush=True)


if __name__ == "__main__":
    main()
