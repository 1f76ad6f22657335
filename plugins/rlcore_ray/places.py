"""The places that the processes of a run hold on the machines of a cluster."""

from __future__ import annotations

import contextlib
import sys
import time
from typing import Any

import ray
from ray.exceptions import GetTimeoutError
from ray.util.placement_group import placement_group, remove_placement_group

from rlcore.safe_text import write
from rlcore_ray import cluster
from rlcore_ray.errors import RayError
from rlcore_ray.launch_command import Launch
from rlcore_ray.presses import Presses, answers

PATIENCE_S = 10.0
"""After how long a command reports that it waits for room."""


def reserve(launch: Launch, presses: Presses) -> Any:
    """Return the places that the ranks hold, once the cluster has room.

    Raises:
        RayError: it has none in time.
        KeyboardInterrupt: a signal has come meanwhile.
    """
    room = ray.cluster_resources()
    gpus = (1.0 if room.get("GPU") else 0.0) if launch.gpus is None else launch.gpus
    needs = {name: amount for name, amount in (("CPU", launch.cpus), ("GPU", gpus)) if amount}
    needs = needs or {"memory": 1.0}  # Ray refuses a place that holds nothing
    each = ", ".join(f"{name} {amount:g}" for name, amount in needs.items())
    wanted = f"{launch.processes} processes with {each} each"

    def list_free() -> str:
        free = ray.available_resources()
        return ", ".join(f"{name} {free.get(name, 0):g} of {room.get(name, 0):g}" for name in needs)

    group = placement_group([needs] * launch.processes, strategy="SPREAD" if launch.spread else "PACK")
    until, ready = time.monotonic() + launch.start_timeout_s, [group.ready()]
    try:
        try:
            answers(ready, min(PATIENCE_S, launch.start_timeout_s), presses)
        except GetTimeoutError:
            if (left := until - time.monotonic()) <= 0:
                raise
            write(f"rlcore ray: waiting for room for {wanted}; free are {list_free()}", sys.stderr)
            answers(ready, left, presses)
    except KeyboardInterrupt:
        release(group)
        raise
    except GetTimeoutError:
        listed = list_free()
        remove_placement_group(group)
        raise RayError(
            f"the cluster has no room for {wanted} within --start-timeout {launch.start_timeout_s:g} seconds; free are "
            f"{listed}: lower --processes, --cpus or --gpus, or add machines"
        ) from None
    return group


def release(group: Any) -> None:
    """Give the places of the ranks back, unless the cluster has ended, as with the sweep that started it."""
    with contextlib.suppress(Exception):  # it ends just now
        if cluster.is_reachable():
            remove_placement_group(group)
