"""The folder of a small run of `grpo`, in which a test can end ranks and nodes from the reward function."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rlcore_testing.small import PROMPTS, make_llama, make_tokenizer

CONFIG = """
model: {path: model}
trainer: {name: grpo, rollouts: 8, num_generations: 4, optimizer: {lr: 1.0e-2}}
data: {prompts: prompts.jsonl, reward_fn: "rewards:length"}
gen: {max_new_tokens: 5}
loggers: []
eval: {at_end: false}
checkpoint: {every: 1}
"""


def write_run(folder: Path, rewards: str, **run: Any) -> None:
    """Write a model, prompts, the module with the reward function `length`, and run.yaml with options of `run`."""
    make_llama().save_pretrained(folder / "model")
    make_tokenizer().save_pretrained(folder / "model")
    options = {"root": "runs", "report": False, "resume": "auto", **run}
    (folder / "run.yaml").write_text(f"{CONFIG}run: {json.dumps(options)}\n")
    (folder / "rewards.py").write_text(rewards)
    (folder / "prompts.jsonl").write_text("".join(json.dumps({"prompt": text}) + "\n" for text in PROMPTS))
