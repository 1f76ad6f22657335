"""How long PPO through rlcore takes to learn the random walks, beside the loop by hand: one seed a repeat."""

from __future__ import annotations

from pathlib import Path

from duel import Duel

TITLE = "PPO on random walks, until the mean optimality of three rounds reaches .95, a seed a repeat"


def duels(folder: Path, quick: bool) -> list[Duel]:
    """List CPU seconds; the iterations are in the JSON."""
    base = str(folder / "base")
    work = [base, "--iterations", "25" if quick else "40", "--seed", "{repeat}"]
    return [
        Duel(
            "6 layers, 144 wide",
            ours=["door_ppo.py", *work],
            theirs=["hand_ppo.py", "ppo", *work],
            figure="cpu_s_to_95",
            own_goal=8.0,
            prepare=[["hand_ppo.py", "base", base]],
        )
    ]
