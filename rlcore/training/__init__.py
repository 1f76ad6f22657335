"""One run, from what the user passed to the last yield: build, loop, evaluate, resume.

An algorithm imports what it builds on from here: the run, the order of its data, batches, the optimizer, metrics.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlcore._lazy import lazy

if TYPE_CHECKING:
    from rlcore.data.order import Order, OrderedRows
    from rlcore.ops import disable_dropout, eval_mode
    from rlcore.optim.updater import Loss, Meter, Updater, validate
    from rlcore.ranks.rounds import Round, micro_batches
    from rlcore.rewards.combine import Scored
    from rlcore.sharding import by_block
    from rlcore.training.evaluate import measure_outputs, summarise
    from rlcore.training.rollout import MemoryStore
    from rlcore.training.rollout_stats import check_logprob_gap, rollout_health, warn_of_bias, weight_metrics
    from rlcore.training.run import Run
    from rlcore.types import stack_groups, stack_samples

__all__ = [
    "Loss",
    "MemoryStore",
    "Meter",
    "Order",
    "OrderedRows",
    "Round",
    "Run",
    "Scored",
    "Updater",
    "by_block",
    "check_logprob_gap",
    "disable_dropout",
    "eval_mode",
    "measure_outputs",
    "micro_batches",
    "rollout_health",
    "stack_groups",
    "stack_samples",
    "summarise",
    "validate",
    "warn_of_bias",
    "weight_metrics",
]

_HOMES = {
    "rlcore.data.order": ("Order", "OrderedRows"),
    "rlcore.ops": ("disable_dropout", "eval_mode"),
    "rlcore.optim.updater": ("Loss", "Meter", "Updater", "validate"),
    "rlcore.ranks.rounds": ("Round", "micro_batches"),
    "rlcore.rewards.combine": ("Scored",),
    "rlcore.sharding": ("by_block",),
    "rlcore.training.evaluate": ("measure_outputs", "summarise"),
    "rlcore.training.rollout_stats": ("check_logprob_gap", "rollout_health", "warn_of_bias", "weight_metrics"),
    "rlcore.training.run": ("Run",),
    "rlcore.training.rollout": ("MemoryStore",),
    "rlcore.types": ("stack_groups", "stack_samples"),
}

__getattr__, __dir__ = lazy(__name__, __all__, _HOMES)
