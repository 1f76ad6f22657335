"""Where the weights, gradients and optimizer state of a model lie: whole on every process, or a part on each."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.optim import Optimizer

from rlcore.errors import ConfigError
from rlcore.protocols import Learner
from rlcore.ranks import Ranks
from rlcore.settings import RunConfig
from rlcore.sharding.whole import WholeModel


class Sharding(Protocol):
    """A strategy (`run.shard`), as the updater sees it.

    The learner keeps the parts of its weights (`rlcore.sharding.shards`), and completes them for passes without
    gradients, for files and for samplers.
    """

    was_skipped: bool
    """Whether the last `step` made no step, because a gradient was not finite."""

    def cut(self, policy: Learner) -> list[torch.nn.Parameter]:
        """Wrap the module of `policy`, and return what the optimizer changes, in the order of its parameters.

        Raises:
            ModelError: the model cannot be divided in this way.
        """
        ...

    def drive(self, optimizer: Optimizer) -> Any:
        """Return the optimizer that `step` steps.

        Raises:
            ConfigError: the optimizer needs whole tensors.
        """
        ...

    def exchanging(self, last: bool) -> AbstractContextManager[None]:
        """Return the context of the passes of one micro-batch; processes exchange gradients in the last one."""
        ...

    def backward(self, loss: Tensor) -> None:
        """Add the gradient of a loss that is this process's share of a sum over all processes."""
        ...

    def step(self, max_norm: float) -> Tensor | None:
        """Clip, step and clear the gradients; return the norm of the whole gradient before it was clipped.

        A gradient whose norm is not finite makes no step, on any process.

        Args:
            max_norm: 0 does not clip, and returns None.
        """
        ...

    def discard(self) -> None:
        """Clear the gradients, in place of a step."""
        ...

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the optimizer; collective.

        Tensors are whole on rank 0, or divided ones (`DTensor`), which are made whole while they are written.
        """
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Restore a state with whole tensors, which any strategy on any number of processes wrote."""
        ...


def choose_sharding(config: RunConfig, ranks: Ranks) -> Sharding:
    """Return the strategy that `run.shard` names.

    Raises:
        ConfigError: the strategy does not work with the other options of the run.
    """
    if config.shard == "none":
        if config.offload:
            raise ConfigError(
                "run.offload: needs run.shard=fsdp, zero2 or zero3, whose parts it keeps in the CPU's memory"
            )
        return WholeModel(ranks)
    within_node = config.shard_within == "node"
    if config.shard == "fsdp":
        from rlcore.sharding.fsdp import FullySharded  # torch.distributed.fsdp takes a second to import

        return FullySharded(ranks, within_node=within_node, offload=config.offload)
    from rlcore.sharding.zero import ZeroRedundancy

    return ZeroRedundancy(ranks, stage=int(config.shard[-1]), within_node=within_node, offload=config.offload)
