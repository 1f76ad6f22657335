"""Train with generated plugins, in the environment they are installed in: scaffold_child.py FOLDER WHAT.

WHAT is `examples`, which trains one step by each plugin's example.py and example.yaml, or `in_step`, which prints what
the trainer template and the published package of the same algorithm make of the same run.
"""

from __future__ import annotations

import json
import os
import runpy
import sys
from pathlib import Path
from typing import Any

import torch

import rlcore
from rlcore.cli import main
from rlcore_testing.small import PROMPTS, make_llama, make_tokenizer, toy_reward
from rlcore_tools.new_plugin.new_plugin_command import KINDS

train = rlcore.train


def examples(folder: Path) -> None:
    def one_step(*arguments: Any, **options: Any) -> Any:
        return train(*arguments, **{**options, "run": {"steps": 1, "name": "python"}})

    rlcore.train = one_step
    for kind in KINDS:
        os.chdir(folder / f"acme-{kind}")
        sys.modules.pop("example", None)
        runpy.run_path("example.py", run_name="__main__")
        assert main(["train", "example.yaml", "run.steps=1", "run.name=yaml"]) == 0


def in_step(folder: Path) -> None:
    found = {}
    for name in ("acme-trainer:acme-trainer", "rlcore-reinforce:reinforce"):
        model, seen = make_llama(), []
        optimizer = {"lr": 0.01, "max_grad_norm": 1.0, "scheduler": "linear"}
        result = train(
            model, tokenizer=make_tokenizer(), reward_fn=toy_reward, prompts=list(PROMPTS), loggers=[],
            trainer={"name": name, "rollouts": 12, "micro_batch_size": 5, "optimizer": optimizer},
            gen={"max_new_tokens": 6, "eos_token_ids": [3, 7, 30]},
            run={"root": str(folder / "runs"), "name": name.partition(":")[0], "epochs": 4},
        )  # fmt: skip
        for line in (result.run_dir / "metrics.jsonl").read_text().splitlines():
            kept = {key: value for key, value in json.loads(line).items() if "time" not in key and "perf/" not in key}
            seen.append(kept)
        weights = torch.cat([weight.double().flatten() for weight in model.parameters()])
        found[name.partition(":")[2]] = {"metrics": seen, "weights": weights.sum().item()}
    print(json.dumps(found))


if __name__ == "__main__":
    torch.set_num_threads(1)
    {"examples": examples, "in_step": in_step}[sys.argv[2]](Path(sys.argv[1]).resolve())
