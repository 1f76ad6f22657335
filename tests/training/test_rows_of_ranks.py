"""Tests of random numbers by rank: rows have the seeds of a single process, and dropout differs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from rlcore.checkpoints.state import seed_dropout, seed_everything
from rlcore_testing.small import make_gpt2


@pytest.mark.parametrize("group", [1, 3])
@pytest.mark.parametrize("world", [2, 4])
def test_every_row_has_the_seed_of_a_single_process(make_trainer: Callable[..., Any], world: int, group: int) -> None:
    count = 3 * group
    rounds: list[list[int | None]] = [[None] * count for _ in range(3)]
    for rank in range(world):
        run = make_run(make_trainer)
        run.ranks.rank, run.ranks.world = rank, world
        rows = run.ranks.share(count, group=group)  # none on the last rank of four
        for seeds in rounds:
            for row, seed in zip(rows, run.sampling.row_seeds(len(rows), group=group), strict=True):
                seeds[row] = seed
    alone = make_run(make_trainer)
    assert rounds == [alone.sampling.row_seeds(count, group=group) for _ in range(3)]
    assert len({seed for seeds in rounds for seed in seeds}) == 3 * count


def make_run(make_trainer: Callable[..., Any]) -> Any:
    return make_trainer(
        "ppo", make_gpt2(), inputs={"prompts": ["a"], "reward_fn": lambda outputs: [0.0] * len(outputs)}
    ).run


def test_dropout_differs_between_ranks_and_is_that_of_the_seed_on_the_first() -> None:
    drawn = []
    for rank in range(3):
        seed_everything(5)
        seed_dropout(5, rank)
        drawn.append(float(torch.rand(())))
    torch.manual_seed(5)
    assert drawn[0] == float(torch.rand(()))
    assert len(set(drawn)) == 3
