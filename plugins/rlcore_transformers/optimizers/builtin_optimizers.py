"""Built-in optimizers, the default schedule, and those that need more checks than the schedules in `transformers`.

`rlcore.plugins.builtin` registers the others directly: functions of `transformers` and classes of torch. Schedules that
depend on a metric, such as torch's ReduceLROnPlateau, are not supported: schedules are stepped without a metric.

`transformers.optimization` is imported where it is used: it imports peft, if that is installed, and takes 11 MB.
"""

from __future__ import annotations

import importlib
from functools import partial
from typing import Any

import torch
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler

from rlcore.errors import ConfigError


def build_constant(optimizer: Optimizer, num_warmup_steps: int) -> LRScheduler:
    """Build a constant rate after a linear warm-up from 0."""
    return LambdaLR(optimizer, partial(_warm_up, num_warmup_steps=num_warmup_steps))


def _warm_up(step: int, *, num_warmup_steps: int) -> float:
    return min(step / num_warmup_steps, 1.0) if num_warmup_steps else 1.0


def build_polynomial(
    optimizer: Optimizer, num_warmup_steps: int, num_training_steps: int, *, lr_end: float = 0.0, power: float = 1.0
) -> LRScheduler:
    """Build polynomial decay from lr to `lr_end` after the warm-up."""
    from transformers.optimization import get_polynomial_decay_schedule_with_warmup

    # transformers divides by the number of steps after the warm-up, which is 0 in a short run.
    last = max(num_training_steps, num_warmup_steps + 1)
    built: LRScheduler = get_polynomial_decay_schedule_with_warmup(
        optimizer, num_warmup_steps, last, lr_end=lr_end, power=power
    )
    return built


def build_cosine_with_min_lr(
    optimizer: Optimizer,
    num_warmup_steps: int,
    num_training_steps: int,
    *,
    min_lr: float | None = None,
    min_lr_rate: float | None = None,
    num_cycles: float = 0.5,
) -> LRScheduler:
    """Build cosine decay from lr to a rate above 0.

    Raises:
        ValueError: not exactly one of `min_lr` and `min_lr_rate` is set, or `min_lr` is above lr.
    """
    from transformers.optimization import get_cosine_with_min_lr_schedule_with_warmup

    if (min_lr is None) == (min_lr_rate is None):
        raise ValueError("exactly one of min_lr and min_lr_rate must be set")
    if min_lr is not None and min_lr > optimizer.defaults["lr"]:
        raise ValueError(f"min_lr = {min_lr:g} must not be above lr = {optimizer.defaults['lr']:g}")
    built: LRScheduler = get_cosine_with_min_lr_schedule_with_warmup(
        optimizer, num_warmup_steps, num_training_steps, num_cycles, min_lr=min_lr, min_lr_rate=min_lr_rate
    )
    return built


def build_warmup_stable_decay(
    optimizer: Optimizer,
    num_warmup_steps: int,
    num_training_steps: int | None = None,
    *,
    num_decay_steps: int,
    num_stable_steps: int | None = None,
    warmup_type: str = "linear",
    decay_type: str = "cosine",
    min_lr_ratio: float = 0.0,
) -> LRScheduler:
    """Build warm-up to lr, a constant phase, and decay in the last steps (Hu et al., 2024, arXiv:2404.06395).

    Raises:
        ValueError: the length of the constant phase is unknown, or warm-up and decay are longer than the run.
    """
    from transformers.optimization import get_wsd_schedule

    if num_stable_steps is None and num_training_steps is None:
        raise ValueError("the number of steps is unknown: set run.steps or num_stable_steps")
    if num_stable_steps is None and num_training_steps is not None:
        num_stable_steps = num_training_steps - num_warmup_steps - num_decay_steps
        if num_stable_steps < 0 < num_training_steps:  # a run of 0 steps only evaluates
            raise ValueError(
                f"warmup_steps = {num_warmup_steps} and num_decay_steps = {num_decay_steps} must fit into the "
                f"{num_training_steps} optimizer steps of the run"
            )
    built: LRScheduler = get_wsd_schedule(
        optimizer, num_warmup_steps, num_decay_steps, num_stable_steps=num_stable_steps, warmup_type=warmup_type,
        decay_type=decay_type, min_lr_ratio=min_lr_ratio,
    )  # fmt: skip
    return built


Groups = list[dict[str, Any]]


def build_adamw(
    groups: Groups,
    *,
    lr: float,
    betas: tuple[float, float] = (0.9, 0.95),
    eps: float = 1e-8,
    weight_decay: float = 1e-6,
    amsgrad: bool = False,
    fused: bool = True,
) -> Optimizer:
    """Build Adam with decoupled weight decay (Loshchilov & Hutter, 2017, arXiv:1711.05101), by default fused."""
    return torch.optim.AdamW(
        groups, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, amsgrad=amsgrad, fused=fused or None
    )


def build_adam(
    groups: Groups,
    *,
    lr: float,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    amsgrad: bool = False,
    fused: bool = True,
) -> Optimizer:
    """Build Adam (Kingma & Ba, 2014, arXiv:1412.6980), by default fused; weight decay is added to the gradient."""
    return torch.optim.Adam(
        groups, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, amsgrad=amsgrad, fused=fused or None
    )


def build_adafactor(
    groups: Groups,
    *,
    lr: float,
    eps: float = 1e-30,
    weight_decay: float = 0.0,
    clip_threshold: float = 1.0,
    decay_rate: float = -0.8,
    beta1: float | None = None,
    scale_parameter: bool = False,
) -> Optimizer:
    """Build Adafactor (Shazeer & Stern, 2018, arXiv:1804.04235), which factorises second moments by row and column.

    The learning rate comes from the schedule; Adafactor's relative step size is off.
    """
    from transformers import Adafactor

    min_scale = 1e-3  # lower bound of a parameter's scale if scale_parameter, from the paper
    built: Optimizer = Adafactor(
        groups, lr=lr, eps=(eps, min_scale), weight_decay=weight_decay, clip_threshold=clip_threshold,
        decay_rate=decay_rate, beta1=beta1, scale_parameter=scale_parameter, relative_step=False,
    )  # fmt: skip
    return built


def build_adamw_8bit(
    groups: Groups,
    *,
    lr: float,
    betas: tuple[float, float] = (0.9, 0.95),
    eps: float = 1e-8,
    weight_decay: float = 1e-6,
    min_8bit_size: int = 4096,
) -> Optimizer:
    """Build AdamW with 8-bit moments (Dettmers et al., 2021, arXiv:2110.02861).

    Raises:
        ConfigError: bitsandbytes is not installed.
    """
    try:
        bitsandbytes = importlib.import_module("bitsandbytes.optim")
    except ImportError as error:
        raise ConfigError("needs bitsandbytes, which is not installed: pip install bitsandbytes") from error
    built: Optimizer = bitsandbytes.AdamW8bit(
        groups, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, min_8bit_size=min_8bit_size
    )
    return built
