"""What a run with several processes calls: to start them, to accept what their launcher was told, to watch them.

Light: the command line imports it without torch.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from rlcore.settings import TrainConfig
from rlcore_shard.launcher import follow_launcher
from rlcore_shard.local_processes import start

if TYPE_CHECKING:
    from rlcore.ranks import Watchdog

__all__ = ["accept_launch", "start", "watch"]


def accept_launch(config: TrainConfig) -> None:
    """Do what `accelerate launch` was told by options of the run, and end this process some time after its launcher.

    Raises:
        RanksError: the launcher was told to divide the model in a way that the options do not name.
    """
    from rlcore_shard.launched_sharding import accept_sharding

    accept_sharding(config)
    if os.environ.get("WORLD_SIZE", "1") != "1":
        follow_launcher()


def watch(rank: int, world: int, timeout_s: float) -> Watchdog:
    """Return the watchdog of this process, whose thread has begun to report."""
    from rlcore_shard.watchdog import Reporter  # needs torch.distributed, which some builds of torch lack

    return Reporter(rank=rank, world=world, timeout_s=timeout_s)
