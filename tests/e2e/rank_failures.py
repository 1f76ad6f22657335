"""Train PPO with SFT's metrics on every rank, and let rank 1 hang or be killed: rank_failures.py MOMENT FOLDER."""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import Any

import torch
from e2e_scenarios import COMMON, PPO, make_llama, make_tokenizer

import rlcore
from rlcore.errors import RanksError

TIMEOUT_S = 2.0


class Failing:
    """Called at one moment of a run; on rank 1 it hangs or kills its process in the first call."""

    def __init__(self, moment: str) -> None:
        self.moment, self.calls = moment, 0

    def at(self, moment: str) -> None:
        self.calls += moment == self.moment
        if os.environ["RANK"] == "1" and moment == self.moment and self.calls == 1:
            if moment == "hang":
                self.hang()
            os.kill(os.getpid(), signal.SIGKILL)

    def hang(self) -> None:
        time.sleep(60)


def main(moment: str, folder: str) -> None:
    torch.set_num_threads(1)
    failing = Failing(moment)

    def reward(outputs: list[str]) -> list[float]:
        failing.at("rollout")
        failing.at("hang")
        return [float(len(output)) for output in outputs]

    def metric(outputs: list[str]) -> dict[str, list[float]]:
        failing.at("evaluation")
        return {"chars": [float(len(output)) for output in outputs]}

    class Observer:
        def on_checkpoint(self, run: Any, path: Any) -> None:
            failing.at("checkpoint")

    model = make_llama()
    model.lm_head.weight.register_hook(lambda gradient: failing.at("backward"))
    model.register_forward_pre_hook(lambda *_: failing.at("forward") if torch.is_grad_enabled() else None)
    given: dict[str, Any] = PPO | COMMON | {"reward_fn": reward, "metric_fn": metric, "observers": [Observer()]}
    run = {"steps": 3, "name": "run", "root": folder, "timeout_s": TIMEOUT_S if moment == "hang" else 60.0}
    every = {"eval": {"every": 1}, "checkpoint": {"every": 1}}
    begun = time.monotonic()
    try:
        rlcore.train(model, tokenizer=make_tokenizer(), run=run, **given | every)
    except RanksError as error:
        print(f"RanksError after {time.monotonic() - begun:.1f} s: {error}")
        sys.exit(1)


if __name__ == "__main__":
    main(*sys.argv[1:])
