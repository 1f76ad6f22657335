"""Benchmark case: PPO with two unfrozen layers; frozen layers run once per round and sequence, or in every pass."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rlcore_tools.bench.duel import Duel

TITLE = "PPO with 2 layers unfrozen, frozen layers run once a round against in every pass, seconds per iteration"
FIGURES: dict[str, Any] = {"figure": "s_per_iteration", "cpu_figure": "cpu_s_per_iteration"}


def duels(folder: Path, quick: bool) -> list[Duel]:
    """List random walks on 6 layers, with and without a KL penalty, and sequences of 64 words on 8 layers."""
    walks, words = str(folder / "base"), str(folder / "words")
    base, iterations = ["hand_ppo.py", "base", walks], "3" if quick else "12"
    work = {
        "6 of 144, random walks": (base, [walks, "--walks", "--iterations", iterations]),
        "the same without a reference": (base, [walks, "--walks", "--kl-coef", "0", "--iterations", iterations]),
        "8 of 256, 64 words": (
            ["trunk_ppo.py", "make", words, "8", "256"],
            [words, "--iterations", "2" if quick else "4"],
        ),
    }
    return [
        Duel(
            name,
            ours=["trunk_ppo.py", "run", *arguments],
            theirs=["trunk_ppo.py", "run", *arguments, "--again"],
            prepare=[making],
            **FIGURES,
        )
        for name, (making, arguments) in work.items()
    ]
