"""Workload and measurement shared by both programs of the fine-tuning benchmark.

Two passes over the same texts in batches of 32, AdamW at 5e-5 without weight decay, gradients clipped at norm 1. The
second pass is measured, from the end of the first pass's last step to its own end. Its tokens are all real tokens of
the texts, including prompts and the EOS of each text, without padding.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

from benchmarks.figures import usage

BATCH_SIZE, LR, MAX_GRAD_NORM, PASSES = 32, 5e-5, 1.0, 2


class Marks:
    """Wall and CPU times at the end of every optimizer step."""

    def __init__(self) -> None:
        self.wall: list[float] = []
        self.cpu: list[float] = []

    def mark(self) -> None:
        """Record the time."""
        self.wall.append(time.perf_counter())
        self.cpu.append(time.process_time())

    def report(self, *, tokens: int, loss: float) -> dict[str, Any]:
        """Return the figures of the second pass, which processed `tokens` tokens."""
        per_pass = len(self.wall) // PASSES
        wall, cpu = (times[-1] - times[per_pass - 1] for times in (self.wall, self.cpu))
        return {
            "tokens_per_s": round(tokens / wall, 1),
            "tokens_per_cpu_s": round(tokens / cpu, 1),
            "s_per_step": round(wall / per_pass, 5),
            "tokens": tokens,
            "loss": round(loss, 4),
            **usage(),
        }


def parser(doc: str | None) -> argparse.ArgumentParser:
    """Return the parser of the arguments that both programs take."""
    arguments = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("model", help="folder made by texts.py")
    arguments.add_argument("data", type=Path, help="folder of the texts")
    arguments.add_argument("kind", choices=["reviews", "gsm8k"])
    arguments.add_argument("--steps", type=int, default=40, help="optimizer steps of a pass")
    return arguments
