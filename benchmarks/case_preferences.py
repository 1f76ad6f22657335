"""Benchmark case: DPO and reward training through rlcore against TRL's, tokens a CPU second and peak memory."""

from __future__ import annotations

from pathlib import Path

from benchmarks.peers import MEMORY, MEMORY_GOALS, peers_python
from benchmarks.texts import data_folder
from rlcore_tools.bench.duel import Duel

TITLE = (
    "DPO and reward training on film reviews, a GPT-2 4x256, batches of 32 pairs, tokens a CPU second, against TRL's"
)


def duels(folder: Path, quick: bool) -> list[Duel]:
    """List DPO with a precomputed reference and with one in every step, and reward training."""
    python, data, model = peers_python(), str(data_folder()), str(folder / "model")
    found = []
    for name, trainer in (
        ("DPO, reference computed before training", ["dpo", "--precompute"]),
        ("DPO, reference computed in every step", ["dpo"]),
        ("reward model", ["reward"]),
    ):
        work = [model, data, *trainer, "--steps", str(6 if quick else 20)]
        found.append(
            Duel(
                name,
                ours=["train_preferences.py", *work],
                theirs=["trl_preferences.py", *work],
                theirs_python=python,
                figure="tokens_per_cpu_s",
                better="more",
                goal=2.0,
                others={"tokens_per_s": "more", "cpu_s": "less", **MEMORY},
                other_goals=MEMORY_GOALS,
                prepare=[["texts.py", model, data]],
            )
        )
    return found
