"""The learning rate of a run that sets none: that of the rule (`learning_rate_rule`) for the model that it trains."""

from __future__ import annotations

from rlcore.logging import get_logger
from rlcore.protocols import Learner
from rlcore.settings import OptimizerConfig
from rlcore_transformers.models.learner import ModelLearner
from rlcore_transformers.optimizers.learning_rate_rule import adapted_rate


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
