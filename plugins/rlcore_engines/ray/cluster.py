"""Connect to Ray, or start one on this machine."""

from __future__ import annotations

import logging
import math
import os
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import ray

from rlcore.errors import RLCoreError


class RayError(RLCoreError, RuntimeError):
    """A cluster that cannot be reached or has no room, or actors that are lost."""


NAMESPACE = "rlcore"
REACH_S = 5.0


def connect(address: str | None, num_cpus: float) -> bool:
    """Connect this process to a cluster, and return whether it has started one, which `disconnect` ends.

    Args:
        address: of the cluster; None takes RAY_ADDRESS, or starts a Ray on this machine.
        num_cpus: processors that a Ray of this machine says it has, at least; they may be fewer.

    Raises:
        RayError: the cluster cannot be reached, or a Ray cannot be started.
        KeyboardInterrupt: Ctrl-C or SIGTERM.
    """
    if ray.is_initialized():
        return False
    address = address or os.environ.get("RAY_ADDRESS") or None
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_worker_niceness", "0")  # ranks and actors get as much of a busy machine as this process
    try:
        with _own_signals():
            if address is not None:
                ray.init(address, namespace=NAMESPACE, log_to_driver=False, logging_level=logging.ERROR)
            else:
                ray.init(
                    "local", num_cpus=max(os.cpu_count() or 1, math.ceil(num_cpus)), namespace=NAMESPACE,
                    include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR,
                )  # fmt: skip
    except SystemExit as error:  # of Ray's handler of SIGTERM
        raise KeyboardInterrupt from error
    except (ConnectionError, RuntimeError, ValueError, OSError, TimeoutError) as error:
        what = f"no cluster answers at {address}" if address else "a Ray cannot be started on this machine"
        reason = str(error).strip().partition("\n")[0]
        raise RayError(f"{what} ({type(error).__name__}: {reason:.300}); `ray status` shows clusters") from error
    return address is None


def disconnect(*, started: bool) -> None:
    """End the Ray that `connect` has started."""
    if started and ray.is_initialized():
        ray.shutdown()


def cluster_address() -> str:
    """Return the address at which other processes reach the cluster."""
    return str(ray.get_runtime_context().gcs_address)


def is_reachable() -> bool:
    """Return whether the cluster still runs; calls that change something there wait a minute for one that does not."""
    host, _, port = cluster_address().rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=REACH_S).close()
    except OSError:
        return False
    return True


@contextmanager
def _own_signals() -> Iterator[None]:
    """Keep the handlers of this process, which Ray replaces: a run saves before it ends by SIGTERM."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
