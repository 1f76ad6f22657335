"""A training of two steps, with which the packages of environments of other libraries are tested."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import rlcore
from rlcore_testing.small import make_llama, make_tokenizer


def train_two_steps(folder: Path, environment: Mapping[str, Any], **episodes: Any) -> Any:
    """Train a Llama with random weights, which writes letters, two steps of grpo with two groups of four; evaluate it.

    Args:
        folder: where the folder `run` is written.
        environment: a registered environment with its options; 8 rows to train on and 4 to evaluate on, unless stated.
        **episodes: the section `data.episodes`.
    """
    model = make_llama()
    model.config.max_position_embeddings = 2048  # rotary: it has no weights of positions
    return rlcore.train(
        model, tokenizer=make_tokenizer(), trainer={"name": "grpo", "rollouts": 8, "num_generations": 4},
        environment={"train_rows": 8, "eval_rows": 4, **environment}, data={"episodes": episodes},
        gen={"max_new_tokens": 3}, run={"root": str(folder), "name": "run", "steps": 2, "report": False}, loggers=[],
    )  # fmt: skip
