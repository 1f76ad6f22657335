"""What some optimizers and learning-rate schedules take besides what all of them do; light, so that it can be listed.

The names are those of the arguments in torch, `transformers` and bitsandbytes.
"""

from __future__ import annotations

from typing import Literal

import attrs

from rlcore.config import config, option

COMMON = ("betas", "eps", "weight_decay")
"""Options of every optimizer that has them in its signature."""
WARMUP, TOTAL = "num_warmup_steps", "num_training_steps"
"""What a schedule is told of the run, where it has them in its signature."""
BESIDE_OPTIONS = {"optimizers": ("lr", *COMMON), "schedulers": (WARMUP, TOTAL)}
"""Kind → what is given by name beside a component's options, so that none of these may be called so."""
MUST_BE_GIVEN = attrs.NOTHING


@config
class AMSGradOptions:
    """Adam and AdamW."""

    amsgrad: bool = option(False, "divide by the largest second moment so far", source="arXiv:1904.09237")
    fused: bool = option(True, "update all parameters in one kernel; false leaves the kernel to torch")


@config
class SGDOptions:
    """Stochastic gradient descent."""

    momentum: float = option(0.0, "share of the last update in the next", ge=0, lt=1)
    dampening: float = option(0.0, "share of the gradient kept out of the momentum", ge=0, le=1)
    nesterov: bool = option(False, "look ahead along the momentum; needs momentum, and no dampening")


@config
class RMSpropOptions:
    """RMSprop."""

    alpha: float = option(0.99, "decay of the running second moment", ge=0, lt=1)
    momentum: float = option(0.0, "share of the last update in the next", ge=0, lt=1)
    centered: bool = option(False, "divide by the variance instead", source="arXiv:1308.0850")


@config
class AdagradOptions:
    """Adagrad."""

    lr_decay: float = option(0.0, "lr is divided by 1 + lr_decay * steps", ge=0)
    initial_accumulator_value: float = option(0.0, "sum of squares that it begins with", ge=0)


@config
class AdadeltaOptions:
    """Adadelta."""

    rho: float = option(0.9, "decay of the running averages", ge=0, lt=1)


@config
class NAdamOptions:
    """Adam with Nesterov's momentum."""

    momentum_decay: float = option(0.004, "how soon the momentum reaches its full size", ge=0)
    decoupled_weight_decay: bool = option(False, "decay weights themselves, as AdamW does, not through the gradient")


@config
class RAdamOptions:
    """Adam with a rectified variance."""

    decoupled_weight_decay: bool = option(False, "decay weights themselves, as AdamW does, not through the gradient")


@config
class AdafactorOptions:
    """Adafactor; its learning rate is `lr`, never one of its own."""

    clip_threshold: float = option(1.0, "bound on the root mean square of an update", gt=0)
    decay_rate: float = option(-0.8, "power of the step by which the second moment's decay goes to 1", lt=0)
    beta1: float | None = option(None, "decay of a running first moment; none is kept when left out", ge=0, lt=1)
    scale_parameter: bool = option(False, "multiply lr by the root mean square of each parameter")


@config
class EightBitOptions:
    """Moments in 8 bits."""

    min_8bit_size: int = option(4096, "smaller parameters keep moments of 32 bits", ge=0, unit="numbers")


@config
class CosineOptions:
    """Along a cosine."""

    num_cycles: float = option(0.5, "periods of the cosine until the last step", gt=0)


@config
class RestartsOptions:
    """Along a cosine that begins anew."""

    num_cycles: int = option(1, "times that it falls to 0", ge=1)


@config
class PolynomialOptions:
    """Along a power of the steps that are left."""

    lr_end: float = option(0.0, "learning rate at the last step", ge=0)
    power: float = option(1.0, "the power; 1 is a straight line", gt=0)


@config
class InverseSqrtOptions:
    """With the inverse root of the step."""

    timescale: int | None = option(
        None, "steps after which the rate, but for warm-up, is 1/√2 of lr; warmup_steps, or 10000, when left out", ge=1
    )


@config
class MinLROptions:
    """Along a cosine to a rate above 0: one of the two must be given."""

    min_lr: float | None = option(None, "learning rate at the last step", ge=0)
    min_lr_rate: float | None = option(None, "the same as a share of lr", ge=0, le=1)
    num_cycles: float = option(0.5, "periods of the cosine until the last step", gt=0)


@config
class StableDecayOptions:
    """Up, level, down."""

    num_decay_steps: int = option(MUST_BE_GIVEN, "optimizer steps in which it falls", ge=1, unit="steps")
    num_stable_steps: int | None = option(
        None, "optimizer steps at lr; as many as the run has room for when left out", ge=0, unit="steps"
    )
    warmup_type: Literal["linear", "cosine", "1-sqrt"] = option("linear", "form of the rise")
    decay_type: Literal["linear", "cosine", "1-sqrt"] = option("cosine", "form of the fall")
    min_lr_ratio: float = option(0.0, "share of lr that it rises from and falls to", ge=0, le=1)


@config
class StepOptions:
    """Down by steps."""

    step_size: int = option(MUST_BE_GIVEN, "optimizer steps from one fall to the next", ge=1, unit="steps")
    gamma: float = option(0.1, "factor of each fall", gt=0)


@config
class ExponentialOptions:
    """Down by a factor a step."""

    gamma: float = option(MUST_BE_GIVEN, "factor of each optimizer step", gt=0)
