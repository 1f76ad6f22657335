"""Options of single optimizers and learning-rate schedules, beside `OptimizerConfig`; light, so they can be listed.

The names are those of the arguments in torch, `transformers` and bitsandbytes.
"""

from __future__ import annotations

from typing import Literal

import attrs

from rlcore.config import config, option

MUST_BE_GIVEN = attrs.NOTHING


@config
class AMSGradOptions:
    """Adam and AdamW."""

    amsgrad: bool = option(False, "divide by the largest second moment so far", source="arXiv:1904.09237")
    fused: bool = option(True, "update all parameters in one kernel; false leaves the kernel to torch")


@config
class SGDOptions:
    """Stochastic gradient descent."""

    momentum: float = option(0.0, "factor of the previous update in the next one", ge=0, lt=1)
    dampening: float = option(0.0, "the gradient enters the momentum with weight 1 - dampening", ge=0, le=1)
    nesterov: bool = option(False, "Nesterov momentum; needs momentum > 0 and dampening = 0")


@config
class RMSpropOptions:
    """RMSprop."""

    alpha: float = option(0.99, "decay of the running second moment", ge=0, lt=1)
    momentum: float = option(0.0, "factor of the previous update in the next one", ge=0, lt=1)
    centered: bool = option(False, "divide by the variance instead", source="arXiv:1308.0850")


@config
class AdagradOptions:
    """Adagrad."""

    lr_decay: float = option(0.0, "lr is divided by 1 + lr_decay * steps", ge=0)
    initial_accumulator_value: float = option(0.0, "initial sum of squared gradients", ge=0)


@config
class AdadeltaOptions:
    """Adadelta."""

    rho: float = option(0.9, "decay of the running averages", ge=0, lt=1)


@config
class NAdamOptions:
    """Adam with Nesterov's momentum."""

    momentum_decay: float = option(0.004, "decay of the momentum schedule", ge=0)
    decoupled_weight_decay: bool = option(
        False, "decay the weights directly, as AdamW does, instead of through the gradient"
    )


@config
class RAdamOptions:
    """Adam with a rectified variance."""

    decoupled_weight_decay: bool = option(
        False, "decay the weights directly, as AdamW does, instead of through the gradient"
    )


@config
class AdafactorOptions:
    """Adafactor with `lr` as its learning rate; the relative step size is off."""

    clip_threshold: float = option(1.0, "bound on the root mean square of an update", gt=0)
    decay_rate: float = option(-0.8, "exponent of the step in the second moment's decay, 1 - step ** decay_rate", lt=0)
    beta1: float | None = option(
        None, "decay of the running first moment; if omitted, no first moment is kept", ge=0, lt=1
    )
    scale_parameter: bool = option(False, "multiply lr by the root mean square of each parameter")


@config
class EightBitOptions:
    """Moments in 8 bits."""

    min_8bit_size: int = option(4096, "parameters with fewer elements keep moments in 32 bits", ge=0, unit="numbers")


@config
class CosineOptions:
    """Cosine decay."""

    num_cycles: float = option(0.5, "periods of the cosine over the run", gt=0)


@config
class RestartsOptions:
    """Cosine decay with restarts."""

    num_cycles: int = option(1, "number of cosine cycles, each from lr to 0", ge=1)


@config
class PolynomialOptions:
    """Polynomial decay."""

    lr_end: float = option(0.0, "learning rate at the last step", ge=0)
    power: float = option(1.0, "exponent of the decay; 1 is linear", gt=0)


@config
class InverseSqrtOptions:
    """Decay with the inverse square root of the step."""

    timescale: int | None = option(
        None, "steps after which the rate is 1/√2 of lr, not counting warm-up; by default warmup_steps, or 10000", ge=1
    )


@config
class MinLROptions:
    """Cosine decay to a rate above 0; min_lr or min_lr_rate must be given."""

    min_lr: float | None = option(None, "learning rate at the last step", ge=0)
    min_lr_rate: float | None = option(None, "the same as a share of lr", ge=0, le=1)
    num_cycles: float = option(0.5, "periods of the cosine over the run", gt=0)


@config
class StableDecayOptions:
    """Warm-up, constant rate, decay."""

    num_decay_steps: int = option(MUST_BE_GIVEN, "optimizer steps of the decay", ge=1, unit="steps")
    num_stable_steps: int | None = option(
        None, "optimizer steps at lr; if omitted, all that remain between warm-up and decay", ge=0, unit="steps"
    )
    warmup_type: Literal["linear", "cosine", "1-sqrt"] = option("linear", "shape of the warm-up")
    decay_type: Literal["linear", "cosine", "1-sqrt"] = option("cosine", "shape of the decay")
    min_lr_ratio: float = option(0.0, "the warm-up starts and the decay ends at this share of lr", ge=0, le=1)


@config
class StepOptions:
    """Decay by a factor every `step_size` steps."""

    step_size: int = option(MUST_BE_GIVEN, "optimizer steps between two decays", ge=1, unit="steps")
    gamma: float = option(0.1, "factor of each decay", gt=0)


@config
class ExponentialOptions:
    """Exponential decay."""

    gamma: float = option(MUST_BE_GIVEN, "factor of lr at each optimizer step", gt=0)
