"""Workload shared by both programs of the preference benchmark.

Two passes over the same pairs of film reviews in batches of 32 pairs, in one forward pass each, without dropout, AdamW
at 1e-5 (reward models 1e-4) without weight decay, gradients clipped at norm 1. DPO has beta .1 and the starting model
as reference. As in sft_work.py, the second pass is measured, and a pair's tokens are those of both sequences, prompts
and EOS included, without padding; precomputing the reference's log-probs is no part of it.
"""

from __future__ import annotations

import argparse
from pathlib import Path

PASSES, BATCH_SIZE, BETA, MAX_GRAD_NORM = 2, 32, 0.1, 1.0
LR = {"dpo": 1e-5, "reward": 1e-4}


def parser(doc: str | None) -> argparse.ArgumentParser:
    """Return the parser of the arguments that both programs take."""
    arguments = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("model", help="folder made by texts.py")
    arguments.add_argument("data", type=Path, help="folder of the reviews")
    arguments.add_argument("trainer", choices=list(LR))
    arguments.add_argument("--steps", type=int, default=40, help="optimizer steps of a pass")
    arguments.add_argument("--precompute", action="store_true", help="compute the reference's log-probs beforehand")
    return arguments
