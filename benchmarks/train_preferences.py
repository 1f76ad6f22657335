"""DPO or reward training through `rlcore.train`, with the public API only; prints one line of JSON."""

from __future__ import annotations

import json
from statistics import mean
from tempfile import TemporaryDirectory
from typing import Any

import torch
import transformers

import rlcore
from benchmarks.figures import above_imports, after_imports
from benchmarks.preference_work import BATCH_SIZE, BETA, LR, MAX_GRAD_NORM, PASSES, parser
from benchmarks.texts import read_preferences
from benchmarks.train_sft import StepMarks
from rlcore import hookimpl
from rlcore.plugins.registry import registries


class Losses(StepMarks):
    """Observer that records the time and the loss of each step."""

    def __init__(self) -> None:
        super().__init__()
        self.losses: list[float] = []

    @hookimpl
    def on_step(self, run: Any, metrics: Any) -> None:
        """Record both."""
        self.mark()
        self.losses.append(metrics["loss/total"])


def main() -> None:
    """Parse the command line, train, and print."""
    options = parser(__doc__).parse_args()
    torch.set_num_threads(1)
    _ = rlcore.train, transformers.GPT2LMHeadModel, transformers.GPT2ForSequenceClassification  # imported on first use
    imports, marks = after_imports(), Losses()
    registries().discovery.hooks.register(marks, name="marks")
    trainer: dict[str, Any] = {
        "name": options.trainer,
        "batch_size": BATCH_SIZE,
        "optimizer": {"lr": LR[options.trainer], "weight_decay": 0.0, "max_grad_norm": MAX_GRAD_NORM},
    }
    if options.trainer == "dpo":
        trainer |= {"beta": BETA, "precompute_ref": options.precompute}
    with TemporaryDirectory() as root:
        result = rlcore.train(
            options.model,
            trainer=trainer,
            samples=read_preferences(options.data, BATCH_SIZE * options.steps),
            eval={"at_end": False},
            checkpoint={"at_end": False},
            run={"epochs": PASSES, "root": root, "name": "benchmark"},
            loggers=[],
        )
    tokens = sum(len(pair.chosen.tokens) + len(pair.rejected.tokens) for pair in result.run.samples)
    print(json.dumps(above_imports(marks.report(tokens=tokens, loss=mean(marks.losses)), imports)))


if __name__ == "__main__":
    main()
