"""Add the folder of a finished run to the labelled runs, such as one of an example.

    python add_run.py FOLDER --scenario ppo-walks --seed 1 [--cause "step too large"]

The runs `ppo-walks` are those of docs/examples/randomwalks_ppo.yaml with `run.seed` 0, 1, 2 ... on one model.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from labelled import RUNS, write_run

from rlcore.config import load_yaml


def main() -> None:
    """Add the run that the arguments name."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--scenario", required=True)
    parser.add_argument("--seed", type=int, required=True)
    parser.add_argument("--cause", default="", help="what is wrong; nothing, if it is left out")
    given = parser.parse_args()
    rows = [json.loads(line) for line in (given.folder / "metrics.jsonl").read_text().splitlines()]
    about = {"scenario": given.scenario, "seed": given.seed, "cause": given.cause, "made": "trained"}
    write_run(RUNS / f"{given.scenario}-{given.seed}.jsonl", about, rows, load_yaml(given.folder / "config.yaml"))


if __name__ == "__main__":
    main()
