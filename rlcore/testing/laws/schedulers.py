"""Laws of learning-rate schedules, held on a run of 40 optimizer steps, the first 8 of them warm-up."""

from __future__ import annotations

import itertools
import math
import tempfile
from pathlib import Path

import torch
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from rlcore.checkpoints.state import load_state, save_state
from rlcore.optim.choose import Optimization, Optimizers, parameters_of
from rlcore.optim.options import WARMUP
from rlcore.settings import OptimizerConfig
from rlcore.testing.law import Subject, law, require

SCHEDULERS = "schedulers"
LR = 0.02
TOTAL, WARM = 40, 8
BEYOND = 5
"""Steps that may come after the last that was foreseen."""


@law(SCHEDULERS)
def every_group_has_the_rate_it_tells(subject: Subject) -> None:
    """At each step every group of the optimizer has the `lr` that `get_last_lr()` tells, one rate for each group."""
    optimizer, schedule = _build(subject)
    for step in range(TOTAL):
        told, there = list(schedule.get_last_lr()), [group["lr"] for group in optimizer.param_groups]
        require(
            told == there and len(set(told)) == 1,
            f"at step {step} get_last_lr() is {told}, and the groups, which began with one rate, have {there}; set the "
            "rate of every group",
        )
        _step(optimizer, schedule)


@law(SCHEDULERS)
def without_warm_up_it_begins_with_lr(subject: Subject) -> None:
    """Without warm-up the first step has the learning rate that the user set."""
    first = _rates(subject, 1)[0]
    require(math.isclose(first, LR), f"the first rate was to be {LR}, which is lr; it is {first}; begin there")


def _warms_up(subject: Subject) -> bool:
    """Tell whether it takes `num_warmup_steps`."""
    takes = parameters_of(_chosen(subject).scheduler)
    return takes is None or WARMUP in takes


@law(SCHEDULERS, when=_warms_up)
def warm_up_rises_to_lr(subject: Subject) -> None:
    """With warm-up the rate begins below lr, rises from step to step, and is lr once so many steps are made."""
    rates = _rates(subject, WARM + 1, warmup_steps=WARM)
    said = ", ".join(f"{rate:.3g}" for rate in rates)
    require(
        all(low < high for low, high in itertools.pairwise(rates)) and math.isclose(rates[-1], LR),
        f"in {WARM} steps the rate was to rise to {LR}; it is {said}; rise to lr in num_warmup_steps",
    )


@law(SCHEDULERS)
def rates_are_numbers_and_not_negative(subject: Subject) -> None:
    """A rate is a finite number, 0 or more, at every step, those too that come after the last one foreseen."""
    for step, rate in enumerate(_rates(subject, TOTAL + BEYOND)):
        require(
            math.isfinite(rate) and rate >= 0,
            f"at step {step} of {TOTAL} the rate is {rate}; keep it at 0 or more, and end where it should stay",
        )


@law(SCHEDULERS)
def a_state_continues(subject: Subject) -> None:
    """Steps, a saved state and the other steps of a new schedule have the rates that all the steps have."""
    expected = _rates(subject, TOTAL)
    for stop in (1, TOTAL // 2):
        optimizer, schedule = _build(subject)
        for _ in range(stop):
            _step(optimizer, schedule)
        with tempfile.TemporaryDirectory(prefix="rlcore-law-") as folder:
            save_state(Path(folder) / "state", [optimizer.state_dict(), schedule.state_dict()])
            of_optimizer, of_schedule = load_state(Path(folder) / "state")
        optimizer, schedule = _build(subject)
        optimizer.load_state_dict(of_optimizer)
        schedule.load_state_dict(of_schedule)
        for step in range(stop, TOTAL):
            rate = optimizer.param_groups[0]["lr"]
            require(
                rate == expected[step],
                f"a schedule that went on from step {stop} has the rate {rate} at step {step}, and without a stop "
                f"{expected[step]}; let state_dict() hold all that the rate depends on",
            )
            _step(optimizer, schedule)


def _chosen(subject: Subject, warmup_steps: int = 0) -> Optimization:
    return Optimizers().get(
        OptimizerConfig(
            name="rlcore:sgd",
            lr=LR,
            scheduler=subject.it.qualified,
            scheduler_options=dict(subject.options),
            warmup_steps=warmup_steps,
        )
    )


def _build(subject: Subject, warmup_steps: int = 0) -> tuple[Optimizer, LRScheduler]:
    """Build the schedule under test as a run does, and the optimizer that it is for."""
    chosen = _chosen(subject, warmup_steps)
    optimizer = chosen.build([{"params": [torch.nn.Parameter(torch.ones(2))]} for _ in range(2)])
    return optimizer, chosen.schedule(optimizer, TOTAL)


def _rates(subject: Subject, count: int, warmup_steps: int = 0) -> list[float]:
    """List the rates of the first steps."""
    optimizer, schedule = _build(subject, warmup_steps)
    rates = []
    for _ in range(count):
        rates.append(float(optimizer.param_groups[0]["lr"]))
        _step(optimizer, schedule)
    return rates


def _step(optimizer: Optimizer, schedule: LRScheduler) -> None:
    optimizer.step()
    schedule.step()
