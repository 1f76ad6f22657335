"""Train in two processes, and write how much they pickle for all of them, by trainer: e2e_objects.py FOLDER.

Each trainer trains on few rows and on four times as many; evaluations, rollouts and checkpoints are written.
"""

from __future__ import annotations

import json
import pickle
import sys
from pathlib import Path
from typing import Any

import torch
from e2e_scenarios import GRPO, PPO, count_a

import rlcore
from rlcore.config import merge
from rlcore_testing.small import make_llama, make_tokenizer

WORDS = [first + second for first in "abcdefgh" for second in "abcdefgh"]
PAIRS = [{"prompt": "it is ", "chosen": word, "rejected": f"{word} not"} for word in WORDS]


def scenarios(scale: int) -> dict[str, dict[str, Any]]:
    """Return the arguments of `rlcore.train` for 16 rows and batches of 8 at a scale of 1."""
    size, pairs = 8 * scale, {"samples": PAIRS[: 16 * scale], "eval_samples": PAIRS[: 8 * scale]}
    rounds = {"prompts": WORDS, "eval_prompts": WORDS[:size], "reward_fn": count_a}
    return {
        "ppo": merge(PPO, {"trainer": {"rollouts": size, "batch_size": size}}) | rounds,
        "grpo": merge(GRPO, {"trainer": {"rollouts": 3 * size}}) | rounds,
        "reward": {**pairs, "trainer": {"name": "reward", "batch_size": size}},
        "dpo": {**pairs, "trainer": {"name": "dpo", "batch_size": size}},
        "dpo from the cache": {**pairs, "trainer": {"name": "dpo", "batch_size": size}},
    }


def count_bytes(folder: Path, name: str, scale: int) -> int:
    """Return how many bytes this rank pickles for all ranks."""
    counts: list[int] = []
    gather, broadcast = torch.distributed.all_gather_object, torch.distributed.broadcast_object_list

    def counted_gather(received: list[Any], value: Any, *args: Any, **options: Any) -> None:
        counts.append(len(pickle.dumps(value)))
        gather(received, value, *args, **options)

    def counted_broadcast(values: list[Any], *args: Any, **options: Any) -> None:
        counts.append(len(pickle.dumps(values)))
        broadcast(values, *args, **options)

    torch.distributed.all_gather_object = counted_gather
    torch.distributed.broadcast_object_list = counted_broadcast
    run = {"name": f"{name[:4]}-{len(name)}-{scale}", "root": str(folder), "steps": 1, "rollouts": "all"}
    common = {"loggers": [], "gen": {"max_new_tokens": 6}, "eval": {"every": 1}, "checkpoint": {"every": 1}}
    try:
        rlcore.train(make_llama(), tokenizer=make_tokenizer(), run=run, **common, **scenarios(scale)[name])
    finally:
        torch.distributed.all_gather_object = gather
        torch.distributed.broadcast_object_list = broadcast
    return sum(counts)


def main(folder: str) -> None:
    torch.set_num_threads(1)
    found = {name: [count_bytes(Path(folder), name, scale) for scale in (1, 4)] for name in scenarios(1)}
    (Path(folder) / f"rank-{torch.distributed.get_rank()}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
