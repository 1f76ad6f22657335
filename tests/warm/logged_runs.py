"""Short runs for tests of loggers, and what the core has written of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import rlcore
from rlcore.errors import RewardError
from rlcore_testing.small import PROMPTS, SAMPLES, make_gpt2, make_tokenizer

TASK = {
    "trainer": {"name": "sft", "batch_size": 4, "optimizer": {"lr": 3e-3}},
    "samples": [list(sample) for sample in SAMPLES],
    "eval_prompts": list(PROMPTS[:3]),
    "gen": {"max_new_tokens": 5},
    "eval": {"every": 2, "at_start": True},
    "checkpoint": {"every": 4, "keep_last": 10},
}


def measure(outputs: list[str]) -> dict[str, list[float]]:
    return {"chars": [float(len(output)) for output in outputs]}


def train(folder: Path, logger: dict[str, Any], *, steps: int, metric_fn: Any = measure, **run: Any) -> Path:
    given = TASK | {"run": {"root": str(folder), "name": "run", "steps": steps, **run}, "metric_fn": metric_fn}
    return rlcore.train(make_gpt2(), tokenizer=make_tokenizer(), loggers=[logger], **given).run_dir


def train_broken(folder: Path, logger: dict[str, Any]) -> Path:
    """Train until the evaluation after step 6 fails, and return the run's folder; its last checkpoint is of step 6."""
    evaluations = iter(range(4))

    def broken(outputs: list[str]) -> dict[str, list[float]]:
        if next(evaluations) == 3:
            raise ValueError("broken")
        return measure(outputs)

    with pytest.raises(RewardError):
        train(folder, logger, steps=7, metric_fn=broken)
    return folder / "run"


def logged(run: Path) -> dict[tuple[int, str], float]:
    """Return the content of metrics.jsonl, which the core writes, without measured times and memory."""
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return {(row["step"], name): value for row in rows for name, value in row.items() if is_exact(name)}


def is_exact(name: str) -> bool:
    return name != "step" and "time" not in name and not name.startswith("perf/")


def completions(run: Path) -> dict[int, list[dict[str, Any]]]:
    rows = [json.loads(line) for line in (run / "completions.jsonl").read_text().splitlines()]
    found: dict[int, list[dict[str, Any]]] = {}
    for row in rows:
        found.setdefault(row.pop("step"), []).append(row)
    return found
