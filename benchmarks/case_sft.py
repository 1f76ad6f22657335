"""Benchmark case: supervised fine-tuning through rlcore against `transformers.Trainer`, in tokens per second."""

from __future__ import annotations

from pathlib import Path

from benchmarks.texts import data_folder
from rlcore_tools.bench.duel import Duel

TITLE = "fine-tuning a GPT-2 4x256 (vocabulary 5,000), batches of 32, tokens a second, against transformers.Trainer"
NAMES = {"reviews": "film reviews", "gsm8k": "GSM8K"}


def duels(folder: Path, quick: bool) -> list[Duel]:
    """List both datasets, packed and padded, against random batches and batches grouped by length."""
    data, model = str(data_folder()), str(folder / "model")
    found = []
    for kind, goal in (("reviews", 2.5), ("gsm8k", None)):
        steps = {"reviews": 10 if quick else 40, "gsm8k": 3 if quick else 10}[kind]
        work = [model, data, kind, "--steps", str(steps)]
        for name, ours, theirs, bound in (
            ("packed", [], [], goal),
            ("padded", ["--padded"], [], None),
            ("packed, against like lengths", [], ["--by-length"], None),
        ):
            found.append(
                Duel(
                    f"{NAMES[kind]}, {name}",
                    ours=["train_sft.py", *work, *ours],
                    theirs=["transformers_sft.py", *work, *theirs],
                    figure="tokens_per_s",
                    cpu_figure="tokens_per_cpu_s",
                    better="more",
                    goal=bound,
                    prepare=[["texts.py", model, data]],
                )
            )
    return found
