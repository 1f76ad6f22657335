"""Tests of the schedule's clock, with a schedule whose learning rate is its position."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.optim.lr_scheduler import LambdaLR

from rlcore.optim.optimization import ScheduleClock

PLANNED = 4
"""Optimizer steps planned for each step of the run."""


class Watch:
    """A clock, and the number of steps of the run that it reads."""

    def __init__(self, num_warmup: int = 0) -> None:
        self.steps = 0
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
        self.clock = ScheduleClock(
            LambdaLR(optimizer, lambda position: 1.0 * position),
            num_warmup=num_warmup,
            updates_per_step=PLANNED,
            steps_done=lambda: self.steps,
        )

    def step(self, num_updates: int, *, spread: bool = False) -> list[float]:
        """Return the learning rate of each optimizer step of a step of the run."""
        rates = []
        if spread and num_updates:
            self.clock.spread(num_updates)
        for _ in range(num_updates):
            rates.append(self.clock.learning_rate())
            self.clock.advance()
        self.steps += 1
        return rates


@pytest.mark.parametrize(
    ("made", "options", "expected"),
    [
        ([4, 4], {}, [[0, 1, 2, 3], [4, 5, 6, 7]]),
        ([2, 0, 1, 4], {}, [[0, 1], [], [8], [12, 13, 14, 15]]),
        ([0, 1], {}, [[], [4]]),
        ([6, 1], {}, [[0, 1, 2, 3, 4, 5], [6]]),  # more than planned
        ([3, 0, 1, 4], {"spread": True}, [[0, 1, 2], [], [8], [12, 13, 14, 15]]),  # 0, 4/3, 8/3
        ([2, 2], {"spread": True}, [[0, 2], [4, 6]]),
        ([6, 6, 1], {"spread": True}, [[0, 0, 1, 2, 2, 3], [4, 4, 5, 6, 6, 7], [8]]),  # multiples of 2/3
        (
            [12, 1],
            {"spread": True},
            [[0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3], [4]],
        ),  # six thirds are less than 2 in floats
        ([3, 3], {"spread": True}, [[0, 1, 2], [4, 5, 6]]),
        ([4, 4], {"num_warmup": 3}, [[0, 1, 2, 3], [4, 5, 6, 7]]),
        ([2, 0, 2, 1], {"num_warmup": 3}, [[0, 1], [], [2, 9], [12]]),  # 9: the second one of the third step
        ([1, 1, 1, 1], {"num_warmup": 3, "spread": True}, [[0], [1], [2], [12]]),
    ],
)
def test_warm_up_counts_steps_made_and_the_rest_of_a_schedule_counts_planned_steps(
    made: list[int], options: dict[str, Any], expected: list[list[int]]
) -> None:
    spread = options.get("spread", False)
    watch = Watch(options.get("num_warmup", 0))
    assert [watch.step(number, spread=spread) for number in made] == expected
    assert watch.clock.num_made == sum(made)


def test_a_restored_schedule_clock_continues_exactly() -> None:
    whole, again = Watch(num_warmup=3), Watch(num_warmup=3)
    whole.step(2)
    again.clock.load_state_dict(whole.clock.state_dict())
    again.steps = whole.steps
    assert [again.step(number) for number in (0, 3, 2)] == [whole.step(number) for number in (0, 3, 2)]
