"""The learning rate of a run that sets none: the published one, adapted to the size of the model and to adapters.

The best learning rate of Adam falls as 1 / width (Yang et al. 2022, arXiv:2203.03466, table 8), and at a given depth
the number of parameters N grows as width ** 2. So a rate published for a model of M parameters becomes

    rate(N) = published * sqrt(M / N),    at most LR(N) = 0.003239 - 0.0001395 ln N

where LR is the best rate for training from scratch (Kaplan et al. 2020, arXiv:2001.08361, eq. D.1). An adapter takes
ten times as much (Biderman et al. 2024, arXiv:2405.09673; Schulman et al. 2025, LoRA Without Regret). The rate is never
below the published one, so that nothing changes for larger models, and has two significant digits.
"""

from __future__ import annotations

import math

from rlcore.logging import get_logger
from rlcore.protocols import Learner
from rlcore.settings import OptimizerConfig
from rlcore_transformers.models.learner import ModelLearner

ADAPTER_FACTOR = 10.0


def adapted_rate(published: float, published_size: float, size: float, *, is_adapter: bool = False) -> float:
    """Return the learning rate for a model of another size.

    Args:
        published: a learning rate.
        published_size: number of parameters of the model for which it was published.
        size: number of parameters of the model, frozen ones included.
        is_adapter: whether an adapter trains instead of the weights.
    """
    from_scratch = 0.003239 - 0.0001395 * math.log(size)
    scaled = min(published * math.sqrt(published_size / size), max(published, from_scratch))
    return float(f"{max(published, scaled * (ADAPTER_FACTOR if is_adapter else 1.0)):.1e}")


def find_rate(config: OptimizerConfig, learner: Learner) -> float:
    """Return the learning rate of a model, and log it.

    Frozen layers count, because the rate depends on the width of the model. Heads do not.
    """
    size, is_adapter = size_of(learner)
    rate = adapted_rate(*config.published, size, is_adapter=is_adapter)
    get_logger("optim").info(
        "learning rate for the size of the model", lr=rate, parameters=size, adapter=is_adapter,
        published="{:g} at {:g}".format(*config.published),
    )  # fmt: skip
    return rate


def size_of(learner: Learner) -> tuple[int, bool]:
    """Return the number of parameters of a model, and whether an adapter trains instead of them."""
    if isinstance(learner, ModelLearner):  # which counts packed weights of 4 bits too
        return learner.model.num_parameters(), learner.saves_part
    return sum(each.numel() for each in learner.module.parameters()), False
