"""Benchmark case: sampling episodes of four turns, with kept keys and values, and with environments that take time."""

from __future__ import annotations

from pathlib import Path

from rlcore_tools.bench.duel import Duel

TITLE = "64 episodes of 4 turns of 32 tokens after prompts of 160 tokens, GPT-2 of 4 layers, 128 wide"

GOAL = 0.8
"""Of the speed with steps that take no time."""


def duels(folder: Path, quick: bool) -> list[Duel]:
    """List the duels: kept states against reading every turn anew, and slow steps against steps that take no time."""
    repeats = ["--repeats", "1" if quick else "3"]
    kept = ["episodes_work.py", *repeats]
    prompts = {"64 prompts": [], "8 prompts, in groups of 8": ["--prompts", "8"], "1 prompt": ["--prompts", "1"]}
    slow = {"steps of .1 s": ["--step-s", ".1"], "steps of .1 s, 2 cohorts": ["--step-s", ".1", "--cohorts", "2"]}
    return [
        *(
            Duel(
                f"kept keys and values, {name}", ours=[*kept, *how], theirs=[*kept, *how, "--anew"],
                figure="tokens_per_s", cpu_figure="tokens_per_cpu_s", better="more",
            )
            for name, how in prompts.items()
        ),
        *(
            Duel(name, ours=[*kept, *how], theirs=kept, figure="tokens_per_busy_s", better="more", goal=GOAL)
            for name, how in slow.items()
        ),
    ]  # fmt: skip
