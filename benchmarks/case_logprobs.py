"""Benchmark case: log-probs with a vocabulary of 50,000; time and memory of PPO's score and update, and of the head."""

from __future__ import annotations

from pathlib import Path

from rlcore_tools.bench.duel import Duel

TITLE = "log-probs at vocabulary 50,000, GPT-2 of 4 layers, 128 wide, 32 x 256 tokens, against log-softmax and gather"


def duels(folder: Path, quick: bool) -> list[Duel]:
    """List the update and the head alone, each by time and by memory, with and without an entropy bonus."""
    size = ["--repeats", "1", "--batch", "16"] if quick else ["--repeats", "2"]
    found = []
    for what, name, memory_goal, time_goal in (
        ("update", "PPO's score and update", 1 / 15, 1 / 1.2),
        ("head", "output embedding alone (4096 rows, 256 wide)", 1 / 15, None),
    ):
        for entropy in ([], ["--entropy"]):
            both = {side: ["logprobs_work.py", what, side, *entropy, *size] for side in ("rlcore", "log_softmax")}
            bonus = "entropy bonus" if entropy else "no entropy"
            for figure, cpu, goal, label in (
                ("s_per_update", "cpu_s_per_update", time_goal, "time"),
                ("peak_extra_mb", None, memory_goal, "memory"),
            ):
                found.append(
                    Duel(
                        f"{name}, {bonus}: {label}",
                        ours=both["rlcore"],
                        theirs=both["log_softmax"],
                        figure=figure,
                        cpu_figure=cpu,
                        better="less",
                        goal=goal,
                    )
                )
    return found
