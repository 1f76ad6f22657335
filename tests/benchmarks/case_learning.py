"""Benchmark case: time until PPO solves random walks, rlcore against the hand-written loop, one seed per repeat."""

from __future__ import annotations

from pathlib import Path

from duel import Duel

TITLE = "PPO on random walks, until the mean optimality of three rounds reaches .95, a seed a repeat"


def duels(folder: Path, quick: bool) -> list[Duel]:
    """List the duel in CPU seconds; the JSON contains the iterations."""
    base = str(folder / "base")
    work = [base, "--iterations", "25" if quick else "40", "--seed", "{repeat}"]
    return [
        Duel(
            "6 layers, 144 wide",
            ours=["train_ppo.py", *work],
            theirs=["hand_ppo.py", "ppo", *work],
            figure="cpu_s_to_95",
            own_goal=8.0,
            prepare=[["hand_ppo.py", "base", base]],
        )
    ]
