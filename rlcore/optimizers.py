"""Build those built-in optimizers that are not a class of torch with its own defaults.

The others of `rlcore.plugin` are classes of torch.optim. Of these some are left out, for no policy could use them:
LBFGS (needs the loss again at every step), SparseAdam (sparse gradients), Muon (matrices alone), Rprop (the gradient of
all there is), ASGD (its average is read by nobody).
"""

from __future__ import annotations

import importlib
from typing import Any

import torch
from torch.optim import Optimizer

from rlcore.errors import ConfigError

Groups = list[dict[str, Any]]


def build_adamw(
    groups: Groups,
    *,
    lr: float,
    betas: tuple[float, float] = (0.9, 0.95),
    eps: float = 1e-8,
    weight_decay: float = 1e-6,
    amsgrad: bool = False,
) -> Optimizer:
    """Build Adam with decoupled weight decay (Loshchilov & Hutter, 2017, arXiv:1711.05101), in fused kernels."""
    return torch.optim.AdamW(
        groups, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, amsgrad=amsgrad, fused=True
    )


def build_adam(
    groups: Groups,
    *,
    lr: float,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    amsgrad: bool = False,
) -> Optimizer:
    """Build Adam (Kingma & Ba, 2014, arXiv:1412.6980), in fused kernels; weight decay goes through the gradient."""
    return torch.optim.Adam(groups, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, amsgrad=amsgrad, fused=True)


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
    """Build Adafactor (Shazeer & Stern, 2018, arXiv:1804.04235): of a matrix's second moment, its rows' and columns'.

    The learning rate is the schedule's: Adafactor's own, relative to the step, is off.
    """
    from transformers import Adafactor

    smallest_scale = 1e-3  # of a parameter, with scale_parameter; the paper's
    built: Optimizer = Adafactor(
        groups, lr=lr, eps=(eps, smallest_scale), weight_decay=weight_decay, clip_threshold=clip_threshold,
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
    """Build AdamW with moments in 8 bits (Dettmers et al., 2021, arXiv:2110.02861).

    Raises:
        ConfigError: bitsandbytes is not installed.
    """
    try:
        found = importlib.import_module("bitsandbytes.optim")
    except ImportError as error:
        raise ConfigError("needs bitsandbytes, which is not installed: pip install bitsandbytes") from error
    built: Optimizer = found.AdamW8bit(
        groups, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay, min_8bit_size=min_8bit_size
    )
    return built
