"""Benchmark case: PPO on random walks to the end, with the settings of the example, against the hand-written loop."""

from __future__ import annotations

from pathlib import Path

from rlcore_tools.bench.duel import Duel

TITLE = "PPO on random walks: CPU s until the mean optimality of three rounds reaches .95, and the end; a seed a repeat"
GRAPHS = (1000, 9, 13)
"""The settings were chosen on graph seeds 2, 4, 5, 7 and 1000, but not on 9 and 13."""


def duels(folder: Path, quick: bool) -> list[Duel]:
    """List one duel per graph, each with the iteration at which .95 was first reached and the optimality at the end."""
    found = []
    for graph in map(str, GRAPHS):
        base = str(folder / f"graph-{graph}")
        work = ["--iterations", "25" if quick else "40"]
        found.append(
            Duel(
                f"graph {graph}, 6 layers, 144 wide",
                ours=["learning_runs.py", str(folder), "--graph-seeds", graph, "--seeds", "{repeat}", *work],
                theirs=["hand_ppo.py", "ppo", base, "--graph-seed", graph, "--seed", "{repeat}", *work],
                figure="cpu_s_to_95",
                others={"iterations_to_95": "less", "end_score": "more"},
                own_goal=8.0,
                prepare=[["hand_ppo.py", "base", base, "--graph-seed", graph]],
            )
        )
    return found
