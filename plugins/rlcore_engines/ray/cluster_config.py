"""Options of `run.cluster`; light, so that they can be read without Ray."""

from __future__ import annotations

from collections.abc import Mapping

from rlcore.config import config, option, structure

NAME = "ray"


@config
class ClusterConfig:
    """Options of `run.cluster` with the name `ray`; they are those of the command `rlcore ray`."""

    name: str = option(NAME, "the launcher")
    address: str | None = option(
        None, "address of the cluster, such as 10.0.0.5:6379; default: that of the variable RAY_ADDRESS, or else a Ray "
        "on this machine, which ends with the run",
    )  # fmt: skip
    cpus: float = option(1.0, "processors that each process holds", ge=0, le=1024)
    gpus: float | None = option(None, "GPUs that each process holds; default: 1 if the cluster has GPUs", ge=0, le=16)
    spread: bool = option(False, "deal the processes to many machines, not to few")
    restarts: int = option(
        0, "most times that all processes are started again after one has failed; with run.resume=auto and run.name "
        "they continue from the newest checkpoint", ge=0, le=1000,
    )  # fmt: skip
    env: tuple[str, ...] = option(
        (), "names of variables that processes get from the environment of the command, beside those that they always "
        "get",
    )  # fmt: skip
    start_timeout_s: float = option(
        600.0, "longest time until the cluster has room, and until the processes have started", gt=0, le=1e9,
        unit="seconds",
    )  # fmt: skip
    end_timeout_s: float = option(
        15.0, "longest time that the other processes may take to end after one has failed", gt=0, le=1e9,
        unit="seconds",
    )  # fmt: skip


def is_ray(cluster: object) -> bool:
    """Return whether `run.cluster` names Ray."""
    return (cluster.get("name") if isinstance(cluster, Mapping) else cluster) == NAME


def read_cluster(cluster: object, where: str) -> ClusterConfig:
    """Return the options of `run.cluster`, which is a name, or a mapping with a name and options.

    Raises:
        ConfigError: an option is unknown or invalid.
    """
    values = dict(cluster) if isinstance(cluster, Mapping) else {"name": cluster}
    options: ClusterConfig = structure(ClusterConfig, values, where=where, path="run.cluster")
    return options
