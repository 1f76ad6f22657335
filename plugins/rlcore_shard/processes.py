"""What a run with several processes calls: to start them, to accept what their launcher was told, to watch them.

Light: the command line imports it without torch.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from rlcore.cli import STARTED
from rlcore.errors import RanksError
from rlcore.settings import TrainConfig
from rlcore_shard.launcher import follow_launcher
from rlcore_shard.local_processes import start

if TYPE_CHECKING:
    from rlcore.ranks import Watchdog

__all__ = ["accept_launch", "start", "watch"]


def accept_launch(config: TrainConfig) -> None:
    """Do what `accelerate launch` was told by options of the run, and end this process some time after its launcher.

    Raises:
        RanksError: the launcher was told to divide the model in a way that the options do not name, or the options name
            a cluster, whose processes the launcher has not started.
    """
    from rlcore_shard.launched_sharding import accept_sharding

    several = os.environ.get("WORLD_SIZE", "1") != "1"
    if config.run.cluster and several and STARTED not in os.environ:
        raise RanksError(
            f"run.cluster = {config.run.cluster!r}: another launcher, such as torchrun, has started this process "
            f"(WORLD_SIZE = {os.environ['WORLD_SIZE']}): leave run.cluster out, or start the run without that "
            "launcher, by rlcore train, which starts run.processes processes on the cluster"
        )
    accept_sharding(config)
    if several:
        follow_launcher()


def watch(rank: int, world: int, timeout_s: float) -> Watchdog:
    """Return the watchdog of this process, whose thread has begun to report."""
    from rlcore_shard.watchdog import Reporter  # needs torch.distributed, which some builds of torch lack

    return Reporter(rank=rank, world=world, timeout_s=timeout_s)
