"""One run, from what the user passed to the last yield: build, loop, evaluate, resume.

An algorithm imports what it builds on from here: the run, the order of its data, batches, the optimizer, metrics.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlcore._lazy import lazy

if TYPE_CHECKING:
    from rlcore.data.order import Order, OrderedRows
    from rlcore.dropout import disable_dropout, eval_mode
    from rlcore.optim.batches import Meter, micro_batches, minibatches, put_through, validate
    from rlcore.optim.updater import Loss, Updater
    from rlcore.rewards.score import Scored
    from rlcore.sharding.divided import by_block
    from rlcore.training.evaluate import measure_outputs, summarise
    from rlcore.training.rollout import MemoryStore
    from rlcore.training.rollout_stats import gather_round, rollout_metrics, warn_of_bias
    from rlcore.training.run import Run
    from rlcore.types import stack_groups, stack_samples

__all__ = [
    "Loss",
    "MemoryStore",
    "Meter",
    "Order",
    "OrderedRows",
    "Run",
    "Scored",
    "Updater",
    "by_block",
    "disable_dropout",
    "eval_mode",
    "gather_round",
    "measure_outputs",
    "micro_batches",
    "minibatches",
    "put_through",
    "rollout_metrics",
    "stack_groups",
    "stack_samples",
    "summarise",
    "validate",
    "warn_of_bias",
]

_HOMES = {
    "rlcore.data.order": ("Order", "OrderedRows"),
    "rlcore.data.preferences": ("flaw_of", "stack_pairs", "usable_pairs"),  # which have moved
    "rlcore.dropout": ("disable_dropout", "eval_mode"),
    "rlcore.optim.batches": ("Meter", "micro_batches", "minibatches", "put_through", "validate"),
    "rlcore.optim.updater": ("Loss", "Updater"),
    "rlcore.rewards.score": ("Scored",),
    "rlcore.sharding.divided": ("by_block",),
    "rlcore.training.evaluate": ("measure_outputs", "summarise"),
    "rlcore.training.rollout_stats": ("gather_round", "rollout_metrics", "warn_of_bias"),
    "rlcore.training.run": ("Run",),
    "rlcore.training.stale_weights": ("check_logprob_gap", "rollout_health"),  # which has moved
    "rlcore.training.rollout": ("MemoryStore",),
    "rlcore.types": ("stack_groups", "stack_samples"),
}

__getattr__, __dir__ = lazy(__name__, __all__, _HOMES)
