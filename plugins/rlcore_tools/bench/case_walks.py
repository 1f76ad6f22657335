"""PPO on random walks through a graph, after imitating some of them (docs/examples/walks.py)."""

from __future__ import annotations

import importlib
from pathlib import Path

METRIC, BETTER = "reward/mean", "more"


def train(folder: Path, *, seed: int, quick: bool, data: Path | None) -> None:  # noqa: ARG001  the texts of others
    """Imitate walks, then learn to find short ones, with a GPT-2 of two layers, 64 wide."""
    import rlcore

    walks = importlib.import_module("walks")
    graph, tokenizer = walks.task(1000), walks.tokenizer()
    config = walks.model_config()
    config.n_layer, config.n_embd, config.n_head = 2, 64, 4

    def reward_fn(samples: list[str]) -> list[float]:
        return [graph.optimality(walk) for walk in samples]

    off = {"at_end": False}
    run = {"root": str(folder), "seed": seed}
    imitation = rlcore.train(
        config, tokenizer=tokenizer, trainer={"name": "sft", "batch_size": 100, "optimizer": {"lr": 2e-3}},
        samples=graph.walks, run={**run, "name": "imitation", "epochs": 1 if quick else 15},
        eval=off, checkpoint=off, loggers=[],
    )  # fmt: skip
    imitation.save_pretrained(folder / "base")
    rlcore.train(
        str(folder / "base"),
        trainer={
            "name": "ppo", "rollouts": 280, "batch_size": 140, "epochs": 4, "clip": 0.4, "kl_coef": 0.0,
            "optimizer": {"lr": 1e-3, "betas": [0.9, 0.999], "eps": 1e-5, "scheduler": "linear"},
        },
        reward_fn=reward_fn, prompts=graph.starts * 14, gen={"max_new_tokens": 9},
        run={**run, "name": "run", "steps": 3 if quick else 15}, eval=off, checkpoint=off, loggers=[],
    )  # fmt: skip
