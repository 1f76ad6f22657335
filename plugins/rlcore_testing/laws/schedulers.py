"""Laws of learning-rate schedules, checked over 40 optimizer steps with 8 warm-up steps."""

from __future__ import annotations

import itertools
import math
import tempfile
from pathlib import Path

import torch
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from rlcore.checkpoints.state import load_state, save_state
from rlcore.components import WARMUP
from rlcore.optim.optimization import Optimization, Optimizers, parameters_of
from rlcore.settings import OptimizerConfig
from rlcore_testing.law import Subject, law, require

SCHEDULERS = "schedulers"
LR = 0.02
TOTAL, WARM = 40, 8
BEYOND = 5
"""Steps after `num_training_steps` that are checked too."""


@law(SCHEDULERS)
def every_group_has_the_reported_rate(subject: Subject) -> None:
    """At each step `get_last_lr()` equals the `lr` of every parameter group of the optimizer."""
    optimizer, schedule = _build(subject)
    for step in range(TOTAL):
        reported, rates = list(schedule.get_last_lr()), [group["lr"] for group in optimizer.param_groups]
        require(
            reported == rates and len(set(reported)) == 1,
            f"at step {step} get_last_lr() is {reported}, but the groups, which started with the same rate, have "
            f"{rates}; set the rate of every group",
        )
        _step(optimizer, schedule)


@law(SCHEDULERS)
def without_warm_up_it_begins_with_lr(subject: Subject) -> None:
    """Without warm-up the learning rate of the first step is `lr`."""
    first = _rates(subject, 1)[0]
    require(math.isclose(first, LR), f"the first rate should be {LR}, which is lr; it is {first}; start with lr")


def _warms_up(subject: Subject) -> bool:
    """Return whether it takes `num_warmup_steps`."""
    takes = parameters_of(_optimization(subject).scheduler)
    return takes is None or WARMUP in takes


@law(SCHEDULERS, when=_warms_up)
def warm_up_rises_to_lr(subject: Subject) -> None:
    """With warm-up the rate starts below `lr`, rises at every step, and is `lr` after `num_warmup_steps` steps."""
    rates = _rates(subject, WARM + 1, warmup_steps=WARM)
    listed = ", ".join(f"{rate:.3g}" for rate in rates)
    require(
        all(low < high for low, high in itertools.pairwise(rates)) and math.isclose(rates[-1], LR),
        f"in {WARM} steps the rate should rise to {LR}; it is {listed}; reach lr after num_warmup_steps",
    )


@law(SCHEDULERS)
def rates_are_numbers_and_not_negative(subject: Subject) -> None:
    """The rate is finite and not negative at every step, also after `num_training_steps`."""
    for step, rate in enumerate(_rates(subject, TOTAL + BEYOND)):
        require(
            math.isfinite(rate) and rate >= 0,
            f"at step {step} of {TOTAL} the rate is {rate}; keep it at 0 or more, also after the last step",
        )


@law(SCHEDULERS)
def a_state_continues(subject: Subject) -> None:
    """Saving the state, loading it into a new schedule and continuing gives the same rates."""
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
                f"a schedule restored at step {stop} has the rate {rate} at step {step}; uninterrupted, it is "
                f"{expected[step]}; include all state that the rate depends on in state_dict()",
            )
            _step(optimizer, schedule)


def _optimization(subject: Subject, warmup_steps: int = 0) -> Optimization:
    return Optimizers().get(
        OptimizerConfig(
            name="rlcore-transformers:sgd",
            lr=LR,
            scheduler=subject.it.qualified,
            scheduler_options=dict(subject.options),
            warmup_steps=warmup_steps,
        )
    )


def _build(subject: Subject, warmup_steps: int = 0) -> tuple[Optimizer, LRScheduler]:
    """Build an optimizer and, as a run does, the schedule under test for it."""
    optimization = _optimization(subject, warmup_steps)
    optimizer = optimization.build([{"params": [torch.nn.Parameter(torch.ones(2))]} for _ in range(2)])
    return optimizer, optimization.schedule(optimizer, TOTAL)


def _rates(subject: Subject, count: int, warmup_steps: int = 0) -> list[float]:
    """Return the rates of the first `count` steps."""
    optimizer, schedule = _build(subject, warmup_steps)
    rates = []
    for _ in range(count):
        rates.append(float(optimizer.param_groups[0]["lr"]))
        _step(optimizer, schedule)
    return rates


def _step(optimizer: Optimizer, schedule: LRScheduler) -> None:
    optimizer.step()
    schedule.step()
