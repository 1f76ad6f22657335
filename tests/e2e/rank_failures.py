"""Train PPO, and let one rank hang or be killed at a moment: rank_failures.py MOMENT FOLDER [RANK [SHARD]]."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import torch
from e2e_scenarios import COMMON, PPO, make_llama, make_tokenizer

import rlcore
from rlcore.errors import RanksError

TIMEOUT_S, HANG_S = 10.0, 6000.0
"""The limit of a run in which a rank hangs, in which ranks of a busy machine meet; how long it hangs."""


class Failing:
    """Called at one moment of a run; on one rank it hangs or kills its process in the first call."""

    def __init__(self, moment: str, rank: str) -> None:
        self.moment, self.is_chosen, self.calls = moment, os.environ["RANK"] == rank, 0

    def at(self, moment: str) -> None:
        self.calls += moment == self.moment
        if self.is_chosen and moment == self.moment and self.calls == 1:
            if moment == "hang":
                self.hang()
            os.kill(os.getpid(), signal.SIGKILL)

    def hang(self) -> None:
        time.sleep(HANG_S)


def main(moment: str, folder: str, rank: str = "1", shard: str = "none") -> None:
    torch.set_num_threads(1)
    failing = Failing(moment, rank)
    with contextlib.suppress(ImportError):
        import deepspeed  # noqa: F401  where it is installed, transformers imports it when it first saves a model

    def reward(outputs: list[str]) -> list[float]:
        failing.at("rollout")
        failing.at("hang")
        return [float(len(output)) for output in outputs]

    def metric(outputs: list[str]) -> dict[str, list[float]]:
        failing.at("evaluation")
        return {"chars": [float(len(output)) for output in outputs]}

    tokenizer: Any = make_tokenizer()
    save = tokenizer.save_pretrained

    def save_pretrained(folder: Path, **options: Any) -> Any:
        """Rank 0 writes the tokenizer of a checkpoint after the weights, and before the optimizer's state."""
        if "checkpoints" in Path(folder).parts:
            failing.at("checkpoint")
        return save(folder, **options)

    tokenizer.save_pretrained = save_pretrained
    model = make_llama()
    model.model.layers[0].register_full_backward_pre_hook(lambda *_: failing.at("backward"))
    model.register_forward_pre_hook(lambda *_: failing.at("forward") if torch.is_grad_enabled() else None)
    given: dict[str, Any] = PPO | COMMON | {"reward_fn": reward, "metric_fn": metric}
    run = {
        "steps": 3,
        "name": "run",
        "root": folder,
        "timeout_s": TIMEOUT_S if moment == "hang" else HANG_S,
        "shard": shard,
    }
    every = {"eval": {"every": 1}, "checkpoint": {"every": 1}}
    try:
        rlcore.train(model, tokenizer=tokenizer, run=run, **given | every)
    except RanksError as error:
        print(f"RanksError: {error}")
        sys.exit(1)


if __name__ == "__main__":
    main(*sys.argv[1:])
