"""Measure what two ranks exchange: a round of 200 MB of rows, and 200 MB of weights that each has half of.

`torchrun --standalone --nproc-per-node 2 exchanges.py [--repeats 10]` prints one line of JSON: megabytes, and of the
repeats the shortest time in seconds and its mean CPU seconds on rank 0.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from typing import Any

import torch

from benchmarks.train_shards import make_model
from rlcore.config import structure
from rlcore.ranks import Ranks
from rlcore.settings import TrainConfig
from rlcore.training import Round
from rlcore.training.build import assemble
from rlcore.training.inputs import Inputs
from rlcore.types import Trajectories
from rlcore_testing.small import make_tokenizer

COLUMNS = ("entropy", "kl", "logprobs", "ref_logprobs", "values")
"""Those of PPO's rounds with a KL penalty, per token."""
ROWS, WIDTH = 3840, 1024


def main() -> None:
    """Print the figures of both exchanges."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--repeats", type=int, default=10)
    repeats = arguments.parse_args().repeats
    torch.set_num_threads(1)
    ranks = Ranks()
    mine = make_rows(ROWS // ranks.world)
    batch = Round.of(ranks, mine)
    size = int(batch.lengths.sum()) * (5 + 4 * len(COLUMNS))
    found = {"rows_mb": size / 1e6, **named("rows", measured(ranks, repeats, batch.whole))}
    policy = divided()
    whole = sum(weight.numel() * weight.itemsize for weight in policy.module.parameters())
    weights = measured(ranks, repeats, policy.gather, before=policy.drop)
    found |= {"weights_mb": whole / 1e6, **named("weights", weights)}
    if ranks.is_main:
        print(json.dumps({name: round(value, 3) for name, value in found.items()}))


def make_rows(count: int) -> Trajectories:
    """Return rows of 3/4 of the width on average, half of them prompt."""
    lengths = torch.linspace(WIDTH / 2, WIDTH, count).long()[:, None]
    mask = torch.arange(WIDTH) < lengths
    columns = {name: torch.randn(count, WIDTH) for name in COLUMNS} | {"scores": torch.randn(count)}
    tokens = torch.randint(10_000, (count, WIDTH))
    return Trajectories(tokens, mask, mask & (torch.arange(WIDTH) >= WIDTH // 4), torch.ones(count).bool(), columns)


def divided() -> Any:
    """Return a policy of 49 million parameters, divided among the processes."""
    run = {"steps": 1, "name": "exchanges", "root": "/tmp", "overwrite": True, "shard": "fsdp", "report": False}
    config = structure(TrainConfig, {"trainer": {"name": "sft"}, "loggers": [], "run": run})
    inputs = Inputs(model=make_model(), tokenizer=make_tokenizer(), samples=[["a", "b"], ["b", "c"]])
    return assemble(config, inputs, "exchanges").trainer.policy()


def measured(
    ranks: Ranks, repeats: int, exchange: Callable[[], Any], before: Callable[[], None] = lambda: None
) -> tuple[float, float]:
    """Return the shortest time of an exchange, and the mean CPU time on this rank."""
    times = []
    for _ in range(repeats + 1):
        before()
        ranks.wait()
        wall, cpu = time.perf_counter(), time.process_time()
        exchange()
        ranks.wait()
        times.append((time.perf_counter() - wall, time.process_time() - cpu))
    return min(wall for wall, _ in times[1:]), sum(cpu for _, cpu in times[1:]) / repeats


def named(what: str, times: tuple[float, float]) -> dict[str, float]:
    """Return figures by name."""
    return {f"{what}_s": times[0], f"{what}_cpu_s": times[1]}


if __name__ == "__main__":
    main()
