"""Benchmark case: PPO on random walks through rlcore against a loop written by hand for one model and one task."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rlcore_tools.bench.duel import Duel

TITLE = "PPO on random walks, seconds per iteration, against a loop by hand"
FIGURES: dict[str, Any] = {"figure": "s_per_iteration", "cpu_figure": "cpu_s_per_iteration"}


def duels(folder: Path, quick: bool) -> list[Duel]:
    """List the task's model, a tiny model where only overhead counts, and the overhead of modules alone."""
    found = []
    for name, tiny, iterations, goal, own_goal in (
        ("6 layers, 144 wide", [], 12, 1.08, None),
        ("1 layer, 24 wide: overhead alone", ["--tiny"], 60, None, 0.040),
    ):
        base = str(folder / ("tiny" if tiny else "base"))
        work = [base, "--iterations", str(iterations // 4 if quick else iterations)]
        found.append(
            Duel(
                name,
                ours=["train_ppo.py", *work],
                theirs=["hand_ppo.py", "ppo", *work],
                goal=goal,
                own_goal=own_goal,
                prepare=[["hand_ppo.py", "base", base, *tiny]],
                **FIGURES,
            )
        )
    small = found[-1]
    by_hand = small.theirs or ()
    return [
        *found,
        Duel(
            "the same, both by hand: through transformers' modules (ours) and without",
            ours=[*by_hand, "--modules"],
            theirs=by_hand,
            prepare=small.prepare,
            **FIGURES,
        ),
    ]
