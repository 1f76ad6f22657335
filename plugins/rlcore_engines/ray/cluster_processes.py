"""What `run.cluster` starts: the processes of a run on the machines of a Ray cluster; light: Ray is imported on use."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import attrs

from rlcore.settings import TrainConfig
from rlcore_engines.ray.cluster_config import read_cluster
from rlcore_engines.ray.launch_command import Launch
from rlcore_shard import local_processes as local

if TYPE_CHECKING:
    from rlcore.ranks import Watchdog


@attrs.frozen
class ClusterProcesses:
    """Starts processes with Ray (`rlcore.protocols.Processes`); they are watched like those of torchrun.

    Attributes:
        cluster: `run.cluster`.
    """

    cluster: Any

    def start(self, processes: int, words: Sequence[str]) -> int:
        """Run `rlcore *words` in several processes of the cluster, and return the exit code.

        Args:
            processes: their number, `run.processes`.
            words: the arguments of the command.

        Raises:
            ConfigError: an option of `run.cluster` is unknown or invalid.
            RayError: the cluster cannot be reached, or has no room.
        """
        launch = Launch.of(read_cluster(self.cluster, "rlcore train"), processes, words)
        from rlcore_engines.ray.launch import start

        return start(launch)

    def accept_launch(self, config: TrainConfig) -> None:
        """Prepare for what the launcher of this process was told, as for torchrun."""
        local.accept_launch(config)

    def watch(self, rank: int, world: int, timeout_s: float) -> Watchdog:
        """Return what notices that a process hangs or has ended, as for torchrun."""
        return local.watch(rank, world, timeout_s)
