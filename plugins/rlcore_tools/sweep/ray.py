"""The Ray cluster of a sweep whose trials run there."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from rlcore.errors import ConfigError
from rlcore_tools.sweep.sweep_options import Sweep


@contextmanager
def cluster_of(sweep: Sweep) -> Iterator[Mapping[str, str]]:
    """Yield the environment variables by which trials find the cluster, which the block may use.

    Trials connect by themselves to a cluster that runs. If there is none, one is started on this machine, and ended
    with the block.

    Raises:
        ConfigError: trials are to run on Ray, and the package for it is not installed.
        RayError: Ray cannot be started.
    """
    run: Mapping[str, Any] = sweep.base.get("run") or {}
    named = run.get("cluster")
    cluster: Mapping[str, Any] = named if isinstance(named, Mapping) else {}
    if sweep.options.on != "ray" or cluster.get("address") or os.environ.get("RAY_ADDRESS"):
        yield {}
        return
    try:
        from rlcore_engines.ray.cluster import cluster_address, connect, disconnect
    except ImportError as error:
        raise ConfigError(
            f"--on ray: needs the package rlcore-engines ({error}): pip install 'rlcore-tools[ray]'"
        ) from error
    processes, cpus = int(run.get("processes") or 1), float(cluster.get("cpus", 1.0))
    started = connect(None, sweep.options.parallel * processes * cpus)
    try:
        yield {"RAY_ADDRESS": cluster_address()}
    finally:
        disconnect(started=started)
