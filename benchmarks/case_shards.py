"""Benchmark case: two processes with a part of the model each (`run.shard=fsdp`) against a whole copy in each (DDP)."""

from __future__ import annotations

from pathlib import Path

from rlcore_tools.bench.duel import Duel

TITLE = "a Llama of 49 million parameters on two processes, run.shard=fsdp against none, seconds a step"


def duels(folder: Path, quick: bool) -> list[Duel]:
    """List SFT, and PPO, which completes the weights once a round for sampling."""
    return [
        Duel(
            trainer,
            ours=["train_shards.py", "fsdp", *work],
            theirs=["train_shards.py", "none", *work],
            figure="s_per_step",
            cpu_figure="cpu_s_per_step",
            goal=1.25,
        )
        for trainer, steps in (("sft", 8), ("ppo", 5))
        for work in [["--trainer", trainer, "--steps", str(4 if quick else steps)]]
    ]
