"""Two weights whose loss changes from step to step, and optimizers and schedules that update them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from transformers import Adafactor

from rlcore.optim.updater import Updater
from rlcore.ranks import Ranks
from rlcore.settings import OptimizerConfig

TOTAL = 12
MATRIX = torch.linspace(-1, 1, 12).view(4, 3)
VECTOR = torch.tensor([0.5, -0.25, 2.0])
Loop = Callable[[list[dict[str, Any]]], torch.optim.Optimizer]
OPTIMIZERS: list[tuple[OptimizerConfig, Loop]] = [
    (
        OptimizerConfig(lr=0.1),
        lambda groups: torch.optim.AdamW(groups, lr=0.1, betas=(0.9, 0.95), eps=1e-8, weight_decay=1e-6),
    ),
    (
        OptimizerConfig(lr=0.1, betas=(0.5, 0.7), eps=0.1, weight_decay=0.2, options={"amsgrad": True}),
        lambda groups: torch.optim.AdamW(groups, 0.1, (0.5, 0.7), 0.1, 0.2, amsgrad=True),
    ),
    (
        OptimizerConfig(name="adam", lr=0.1, betas=(0.5, 0.7), eps=1e-3, weight_decay=0.2),
        lambda groups: torch.optim.Adam(groups, 0.1, (0.5, 0.7), 1e-3, weight_decay=0.2),
    ),
    (OptimizerConfig(name="nadam", lr=0.1, eps=1e-3), lambda groups: torch.optim.NAdam(groups, 0.1, eps=1e-3)),
    (
        OptimizerConfig(name="nadam", lr=0.1, weight_decay=0.2, options={"decoupled_weight_decay": True}),
        lambda groups: torch.optim.NAdam(groups, 0.1, weight_decay=0.2, decoupled_weight_decay=True),
    ),
    (OptimizerConfig(name="radam", lr=0.1), lambda groups: torch.optim.RAdam(groups, 0.1)),
    (
        OptimizerConfig(name="adamax", lr=0.1, eps=0.1),
        lambda groups: torch.optim.Adamax(groups, 0.1, eps=0.1),
    ),
    (OptimizerConfig(name="sgd", lr=0.1), lambda groups: torch.optim.SGD(groups, 0.1)),
    (
        OptimizerConfig(name="sgd", lr=0.1, weight_decay=0.2, options={"momentum": 0.9, "nesterov": True}),
        lambda groups: torch.optim.SGD(groups, 0.1, 0.9, weight_decay=0.2, nesterov=True),
    ),
    (
        OptimizerConfig(name="rmsprop", lr=0.1, options={"alpha": 0.5, "momentum": 0.5, "centered": True}),
        lambda groups: torch.optim.RMSprop(groups, 0.1, 0.5, momentum=0.5, centered=True),
    ),
    (
        OptimizerConfig(name="adagrad", lr=0.1, options={"lr_decay": 0.5, "initial_accumulator_value": 0.1}),
        lambda groups: torch.optim.Adagrad(groups, 0.1, 0.5, initial_accumulator_value=0.1),
    ),
    (
        OptimizerConfig(name="adadelta", lr=1.0, options={"rho": 0.5}),
        lambda groups: torch.optim.Adadelta(groups, 1.0, 0.5),
    ),
    (
        OptimizerConfig(name="adafactor", lr=0.1),
        lambda groups: Adafactor(groups, 0.1, scale_parameter=False, relative_step=False),
    ),
    (
        OptimizerConfig(name="adafactor", lr=0.1, weight_decay=0.2, options={"beta1": 0.5, "scale_parameter": True}),
        lambda groups: Adafactor(groups, 0.1, weight_decay=0.2, beta1=0.5, relative_step=False),
    ),
]


class Weights(nn.Module):
    """Trainable matrix and vector."""

    def __init__(self, matrix: Tensor = MATRIX, vector: Tensor = VECTOR, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.matrix, self.vector = nn.Parameter(matrix.to(dtype, copy=True)), nn.Parameter(vector.to(dtype, copy=True))


class Policy:
    """Minimal policy for an updater."""

    version = 0

    def __init__(self, weights: nn.Module) -> None:
        self.module = weights

    def use_forward(self, forward: Any, *, autocast: Any) -> None:
        """Do nothing."""


def loss_of(weights: Weights, step: int) -> Tensor:
    """Return a loss that changes from step to step."""
    return (weights.matrix - step / 3).square().sum() + (weights.matrix.sum(0) * weights.vector).sum() * (-1) ** step


def updater_of(weights: Weights, config: OptimizerConfig, total: int | None = TOTAL) -> Updater:
    policy: Any = Policy(weights)
    return Updater(policy, config, Ranks("no"), total_updates=total)


def update(updater: Updater, weights: Weights, first: int, last: int) -> list[float]:
    rates = []
    for step in range(first, last):
        updater.backward(loss_of(weights, step))
        updater.step()
        rates.append(updater.lr)
    return rates


# Rates in units of lr, computed by hand: 12 steps, the first 4 of them warm-up. The last two are after the end.
HALF = 0.5
RISE = [0, 0.25, 0.5, 0.75]
SCHEDULES: list[tuple[str, dict[str, Any], int, dict[int, float]]] = [
    ("constant", {}, 4, dict(enumerate([*RISE, 1, 1])) | {13: 1}),
    ("constant", {}, 0, {0: 1, 13: 1}),
    ("linear", {}, 4, dict(enumerate([*RISE, 1, 7 / 8, 6 / 8])) | {8: HALF, 11: 1 / 8, 12: 0, 13: 0}),
    ("linear", {}, 0, {0: 1, 3: 0.75, 6: HALF, 12: 0}),
    ("cosine", {}, 4, dict(enumerate([*RISE, 1])) | {6: (1 + 2**-0.5) / 2, 8: HALF, 10: (1 - 2**-0.5) / 2, 12: 0}),
    ("cosine", {"num_cycles": 1.0}, 4, {4: 1, 6: HALF, 8: 0, 10: HALF, 12: 1}),
    ("cosine_with_restarts", {"num_cycles": 2}, 4, {4: 1, 6: HALF, 7: (1 - 2**-0.5) / 2, 8: 1, 10: HALF, 12: 0}),
    ("cosine_with_min_lr", {"min_lr_rate": 0.2}, 4, {2: HALF, 4: 1, 8: 0.6, 12: 0.2}),
    ("cosine_with_min_lr", {"min_lr": 0.02}, 0, {0: 1, 6: 0.6, 12: 0.2}),
    ("polynomial", {"power": 2.0}, 4, dict(enumerate([*RISE, 1])) | {6: 9 / 16, 8: 1 / 4, 12: 0, 13: 0}),
    ("polynomial", {"lr_end": 0.05}, 4, {2: HALF, 4: 1, 8: 0.75, 12: 0.5, 13: 0.5}),
    ("inverse_sqrt", {}, 4, dict(enumerate([*RISE, 1])) | {9: 2 / 3, 12: (1 / 3) ** 0.5}),
    ("inverse_sqrt", {"timescale": 1}, 0, {0: 1, 3: HALF, 8: 1 / 3}),
    ("warmup_stable_decay", {"num_decay_steps": 4}, 4, {2: HALF, 4: 1, 7: 1, 8: 1, 10: HALF, 12: 0, 13: 0}),
    (
        "warmup_stable_decay",
        {"num_decay_steps": 4, "num_stable_steps": 1, "decay_type": "linear", "min_lr_ratio": 0.2},
        2, {0: 0.2, 1: 0.6, 2: 1, 3: 1, 4: 0.8, 5: 0.6, 7: 0.2, 12: 0.2},
    ),
    ("step", {"step_size": 5, "gamma": 0.5}, 0, {0: 1, 4: 1, 5: 0.5, 9: 0.5, 10: 0.25}),
    ("exponential", {"gamma": 0.5}, 0, {0: 1, 1: 0.5, 4: 1 / 16}),
]  # fmt: skip
