"""Benchmark case: GRPO, and PPO, through rlcore against TRL's GRPO and RLOO, on random walks and on film reviews."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from benchmarks.peers import MEMORY, MEMORY_GOALS, peers_python
from benchmarks.places import Unavailable
from benchmarks.texts import data_folder
from rlcore_tools.bench.duel import Duel

TITLE = (
    "CPU seconds per iteration, GRPO through rlcore against TRL's, and PPO against TRL's RLOO (which has no value "
    "function to train)"
)


def duels(folder: Path, quick: bool) -> list[Duel]:
    """List the random walks, also with a tiny model where only overhead counts, and the reviews if available."""
    python = peers_python()
    walks, tiny, reviews = (str(folder / name) for name in ("walks", "tiny", "reviews"))
    works: list[tuple[str, str, int, list[str], list[str]]] = [
        ("random walks, 6 layers, 144 wide", walks, 12, [], ["hand_ppo.py", "base", walks]),
        ("random walks, 1 layer, 24 wide: overhead alone", tiny, 40, [], ["hand_ppo.py", "base", tiny, "--tiny"]),
    ]
    with suppress(Unavailable):
        data = str(data_folder())
        task = ["--task", "reviews", "--data", data]
        works.append(("reviews, 4 layers, 256 wide", reviews, 4, task, ["tasks.py", reviews, data]))
    found = []
    for name, base, iterations, more, prepare in works:
        work = [base, "--iterations", str(max(iterations // 4, 2) if quick else iterations), *more]
        pairs = [("PPO and RLOO", "ppo", "rloo", None), ("GRPO", "grpo", "grpo", 0.5)]
        found += [
            Duel(
                f"{title}, {name}",
                ours=["train_ppo.py", *work, "--trainer", ours],
                theirs=["trl_groups.py", *work, "--trainer", theirs],
                theirs_python=python,
                figure="cpu_s_per_iteration",
                goal=goal,
                others={"s_per_iteration": "less", **MEMORY},
                other_goals=MEMORY_GOALS if goal else {},
                prepare=[prepare],
            )
            for title, ours, theirs, goal in pairs
        ]
    return found
