"""Runs of sft that are evaluated."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from rlcore.training.run import Run
from rlcore_testing.small import make_gpt2

Make = Callable[..., Any]
GEN = {"max_new_tokens": 4}


def share_of_a(outputs: Sequence[str]) -> dict[str, list[float]]:
    return {"optimality": [output.count("a") / max(len(output), 1) for output in outputs]}


def sft_run(make_trainer: Make, **sections: Any) -> Run:
    inputs = {"samples": ["ab", "cd"], "eval_prompts": ["a", "bc"], "metric_fn": share_of_a}
    inputs |= sections.pop("inputs", {})
    run: Run = make_trainer("sft", make_gpt2(), sections={"gen": GEN, **sections}, inputs=inputs).run
    return run
