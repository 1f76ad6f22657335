"""Benchmark case: sampling and training steps on a GPU, which must be present."""

from __future__ import annotations

from pathlib import Path

from benchmarks.places import Unavailable
from rlcore_tools.bench.duel import Duel

TITLE = "on a CUDA device: sampling, and by generate; a training step, packed and padded"
WORKS = {"batch 16": ["--batch", "16"], "batch 128": ["--batch", "128"], "batch 128, 8 samples a prompt": [
    "--batch", "128", "--samples", "8"]}  # fmt: skip


def duels(folder: Path, quick: bool) -> list[Duel]:
    """List the duels.

    Raises:
        Unavailable: torch finds no CUDA device.
    """
    import torch  # imported here, so that only this case pays for it

    if not torch.cuda.is_available():
        raise Unavailable("no CUDA device here")
    shape = ["--layers", "4" if quick else "12", "--dtype", "bfloat16"]
    found = [
        Duel(
            f"sampling, {name}, against generate",
            ours=["gpu_work.py", "sample", "rlcore", *work, *shape],
            theirs=["gpu_work.py", "sample", "generate", *work, *shape],
            figure="tokens_per_s",
            better="more",
        )
        for name, work in WORKS.items()
    ]
    step = Duel(
        "training step, packed against padded with all logits",
        ours=["gpu_work.py", "step", "rlcore", *shape],
        theirs=["gpu_work.py", "step", "transformers", *shape],
        figure="tokens_per_s",
        better="more",
    )
    return [*found, step]
