"""Benchmark case: scoring eight samples per prompt with gradients, with the shared prefix computed once."""

from __future__ import annotations

from pathlib import Path

from rlcore_tools.bench.duel import Duel

TITLE = "score and backward pass of 8 samples of each of 4 prompts of 160 tokens, GPT-2 of 4 layers, 256 wide"


def duels(folder: Path, quick: bool) -> list[Duel]:
    """List the duels against scoring one sample per prompt at a time, and against plain transformers."""
    size = ["--repeats", "2" if quick else "5"]
    return [
        Duel(
            name,
            ours=["prefixes_work.py", "together", *size],
            theirs=["prefixes_work.py", other, *size],
            figure="s_per_pass",
            cpu_figure="cpu_s_per_pass",
            better="less",
        )
        for name, other in (("one sample of a prompt at a time", "apart"), ("transformers", "transformers"))
    ]
