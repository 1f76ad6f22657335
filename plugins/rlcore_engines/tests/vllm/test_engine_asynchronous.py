"""Whole asynchronous runs with a real vLLM on the CPU: `make test-engines`."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import engine_walks
import pytest
from engine_walks import imitate, improve, lines

pytestmark = pytest.mark.engine

FIGURES = ("reward/mean", "is/kl", "is/logprob_gap", "is/weight_mean", "time/idle_s", "time/step_s", "time/update_s")
CASES: dict[str, dict[str, Any]] = {
    "grpo": {"trainer": "grpo", "rate": 1.0, "run": {"steps": 30}},
    "ppo": {"trainer": "ppo", "rate": 0.25, "run": {"steps": 50}},  # PPO learns less from older samples in larger steps
    "grpo_broadcast": {"trainer": "grpo", "rate": 1.0, "run": {"steps": 30}, "sampler": {"transfer": "broadcast"}},
}
KILLED = 14
"""The step in which the run is killed; its last checkpoint is of step 10."""
TIMES = ("time", "perf/", "eval/time", "memory/")


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def without_times(path: Path) -> dict[int, dict[str, Any]]:
    """Return the metrics of each step that do not depend on the speed of the machine."""
    kept = [{k: v for k, v in line.items() if not k.startswith(TIMES)} for line in lines(path)]
    return {line["step"]: line for line in kept if "reward/mean" in line}


def rows_of(folder: Path) -> list[dict[str, Any]]:
    """Return the rollouts of the steps before that in which the run is killed."""
    return [row for row in lines(folder / "rollouts.jsonl") if row["step"] < KILLED]


def print_figures(steps: Sequence[dict[str, Any]]) -> None:
    """Print what the manual reports; a step in which no token counts has no metric of weights."""
    for name in FIGURES:
        print(f"  {name}: {[round(line[name], 4) for line in steps if name in line]}", file=sys.stderr)


@pytest.mark.parametrize("name", CASES)
def test_random_walks_are_learned_from_rounds_that_vllm_samples_ahead(
    name: str, engine: dict[str, Any], tmp_path: Path
) -> None:
    """The run is killed while a round is under way, and resumed from a checkpoint with a round that has arrived.

    What it repeats is the same to the last bit; log-probs of all rows are those of the weights of their version.
    """
    imitate(tmp_path)
    case = {**CASES[name], "is_correction": "token_truncate"}
    case["sampler"] = {**engine, "args": list(engine["args"]), **case.get("sampler", {})}
    case["run"] = {**case["run"], "asynchronous": 1, "resume": "auto"}
    command = [sys.executable, engine_walks.__file__, json.dumps({**case, "folder": str(tmp_path), "kill_in": KILLED})]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=900)
    assert done.returncode == -signal.SIGKILL, done.stderr[-3000:]
    folder, seen = tmp_path / case["trainer"], tmp_path / "watch.jsonl"
    last = lines(seen)[-1]
    assert last["under_way"] == 1
    until = time.monotonic() + 300
    while is_running(last["guard"]) and time.monotonic() < until:
        time.sleep(0.1)
    assert not is_running(last["guard"])
    metrics, rows = without_times(folder / "metrics.jsonl"), rows_of(folder)
    assert max(metrics) == KILLED - 1

    result = improve(tmp_path, **case, observers=[engine_walks.Watch(seen)])
    again = without_times(folder / "metrics.jsonl")
    assert {step: again[step] for step in metrics} == metrics
    assert rows_of(folder) == rows

    steps, rounds = case["run"]["steps"], lines(seen)
    by_step = {line["step"]: line for line in lines(folder / "metrics.jsonl") if "reward/mean" in line}
    assert [by_step[step]["age/max"] for step in range(1, steps + 1)] == [0.0] + [1.0] * (steps - 1)
    assert [line["step"] for line in rounds] == [*range(1, KILLED + 1), *range(11, steps + 1)]
    assert all(line["version"] == max(0, line["step"] - 2) for line in rounds)
    assert all(line["checked"] == line["updates"] for line in rounds)
    assert [line["loads"] for line in rounds] == [*range(1, KILLED + 1), *range(1, steps - 9)]
    is_sent = case["sampler"].get("transfer") == "broadcast"
    assert all((line["files"] == 0) == is_sent for line in rounds)
    gaps = [line["gap"] for line in rounds if line["gap"] is not None]
    assert len(gaps) == len(rounds) - 1  # the first one after the kill was sampled in the other process
    assert max(gaps) < 1e-5
    reached = result.metrics["eval/reward/mean"]
    print(f"{name}: optimality {reached:.4f}; largest gap {max(gaps):.1e}", file=sys.stderr)
    print_figures([by_step[step] for step in sorted(by_step)])
    assert reached >= 0.95


def test_random_walks_are_learned_from_responses_that_go_on_with_new_weights(
    engine: dict[str, Any], tmp_path: Path
) -> None:
    """The log-prob of each token is that of the weights which sampled it, in all rounds."""
    imitate(tmp_path)
    seen, sampler = tmp_path / "watch.jsonl", {**engine, "continue_responses": True}
    result = improve(
        tmp_path, "grpo", sampler, observers=[engine_walks.Watch(seen)], run={"steps": 30, "asynchronous": 1},
        is_correction="token_truncate",
    )  # fmt: skip
    steps = [line for line in lines(result.run_dir / "metrics.jsonl") if "reward/mean" in line]
    gaps, renewed = [line["gap"] for line in lines(seen)], [line["age/renewed_frac"] for line in steps]
    reached = result.metrics["eval/reward/mean"]
    print(f"optimality {reached:.4f}; largest gap {max(gaps):.1e}; renewed {renewed}", file=sys.stderr)
    print_figures(steps)
    assert [line["age/max"] for line in steps] == [0.0] + [1.0] * 29
    assert renewed[0] == 0.0
    assert max(renewed) > 0.0  # where sampling takes longer than learning
    assert max(gaps) < 1e-5
    assert reached >= 0.95
