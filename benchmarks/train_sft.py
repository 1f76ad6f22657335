"""Fine-tune through `rlcore.train`, with the public API only; prints one line of JSON (sft_work.py)."""

from __future__ import annotations

import json
from tempfile import TemporaryDirectory
from typing import Any

import torch

import rlcore
from benchmarks.sft_work import BATCH_SIZE, LR, MAX_GRAD_NORM, PASSES, Marks, parser
from benchmarks.texts import read_pairs
from rlcore import hookimpl
from rlcore.plugins.registry import registries


class StepMarks(Marks):
    """Observer that records the time at the end of each step."""

    @hookimpl
    def on_step(self, run: Any, metrics: Any) -> None:
        """Record the time."""
        self.mark()


def main() -> None:
    """Parse the command line, train, and print."""
    arguments = parser(__doc__)
    arguments.add_argument("--padded", action="store_true", help="let padding run through the model")
    options = arguments.parse_args()
    torch.set_num_threads(1)
    pairs = read_pairs(options.kind, options.data, BATCH_SIZE * options.steps)
    marks = StepMarks()
    registries().discovery.hooks.register(marks, name="marks")
    optimizer = {"lr": LR, "weight_decay": 0.0, "max_grad_norm": MAX_GRAD_NORM}
    with TemporaryDirectory() as root:
        result = rlcore.train(
            {"path": options.model, "speed": {"packing": not options.padded}},
            trainer={"name": "sft", "batch_size": BATCH_SIZE, "optimizer": optimizer},
            samples=[[prompt, output] if prompt else output for prompt, output in pairs],
            eval={"at_end": False},
            checkpoint={"at_end": False},
            run={"epochs": PASSES, "root": root, "name": "benchmark"},
            loggers=[],
        )
    tokens = sum(len(sample.tokens) for sample in result.run.samples)
    print(json.dumps(marks.report(tokens=tokens, loss=result.metrics["loss/total"])))


if __name__ == "__main__":
    main()
