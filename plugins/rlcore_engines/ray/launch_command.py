"""The command `rlcore ray`; light: Ray is imported on use.

Also in this file: signals to a command that waits for a cluster.
"""

from __future__ import annotations

import argparse
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, cast

import attrs
import ray
from ray.exceptions import GetTimeoutError

from rlcore_engines.ray.cluster_config import ClusterConfig

FORWARDED = ("RLCORE_", "HF_", "OMP_NUM_THREADS", "PYTHONPATH", "TOKENIZERS_PARALLELISM")
"""Beginnings of the names of variables that ranks get from the environment of the command."""


@attrs.frozen(kw_only=True)
class Launch:
    """What to start.

    Attributes:
        words: the arguments of `rlcore`.
        processes: number of ranks.
        address: of the cluster; None takes RAY_ADDRESS, or starts a Ray on this machine.
        cpus: processors that each rank holds.
        gpus: GPUs that each rank holds; None is one if the cluster has GPUs.
        spread: whether ranks are dealt to many machines; else they are kept on few.
        restarts: how often all ranks are started again after one has failed.
        env: names of further variables that ranks get.
        start_timeout_s: longest time until the cluster has room.
        end_timeout_s: how long the other ranks may take to end after one has failed: they notice by themselves, and
            say what they saw.
    """

    words: Sequence[str]
    processes: int
    address: str | None = None
    cpus: float = 1.0
    gpus: float | None = None
    spread: bool = False
    restarts: int = 0
    env: Sequence[str] = ()
    start_timeout_s: float = 600.0
    end_timeout_s: float = 15.0

    @classmethod
    def of(cls, options: ClusterConfig, processes: int, words: Sequence[str]) -> Launch:
        """Return what `run.cluster` starts."""
        own = {name: value for name, value in attrs.asdict(cast("Any", options)).items() if name != "name"}
        return cls(words=words, processes=processes, **own)

    def forwarded(self) -> dict[str, str]:
        """Return the variables that ranks get from this process."""
        return {
            name: value
            for name, value in os.environ.items()
            if name.startswith(FORWARDED) or name in self.env
        }  # fmt: skip


def command(parser: argparse.ArgumentParser) -> Callable[[argparse.Namespace], int]:
    """Add the arguments of `rlcore ray` to its parser, and return the function that runs it."""
    parser.description = (
        "Run a command of rlcore in several processes on the machines of a Ray cluster, as torchrun does on machines "
        "where it is started: rlcore ray --processes 16 train run.yaml run.shard=fsdp. Machines need the same "
        "installation and, under the same paths, the same files. Without a cluster it uses this machine."
    )
    parser.add_argument("--processes", type=partial(_number, least=1), required=True, help="processes, all machines")
    parser.add_argument("--address", help="of the cluster, such as 10.0.0.5:6379 (default: that of RAY_ADDRESS)")
    parser.add_argument("--cpus", type=float, default=1.0, help="processors that each process holds (default: 1)")
    parser.add_argument(
        "--gpus", type=float, help="GPUs that each process holds (default: 1 if the cluster has GPUs, else 0)"
    )
    parser.add_argument("--spread", action="store_true", help="deal processes to many machines, not to few")
    parser.add_argument(
        "--restarts", type=partial(_number, least=0), default=0,
        help="how often all processes are started again after one has failed (default: 0); with run.resume=auto and "
        "run.name they continue from the newest checkpoint",
    )  # fmt: skip
    parser.add_argument(
        "--env", action="append", default=[], metavar="NAME",
        help=f"a variable that processes get from here, beside {', '.join(FORWARDED)}",
    )  # fmt: skip
    parser.add_argument(
        "--start-timeout", type=float, default=600.0, metavar="SECONDS", help="longest time until there is room"
    )
    parser.add_argument(
        "--end-timeout", type=float, default=15.0, metavar="SECONDS",
        help="longest time that the other processes may take to end after one has failed (default: 15)",
    )  # fmt: skip
    parser.add_argument("command", nargs=argparse.REMAINDER, metavar="COMMAND ...", help="a command of rlcore")
    return partial(_run, parser)


def _number(text: str, *, least: int) -> int:
    value = int(text)
    if value < least:
        raise argparse.ArgumentTypeError(f"{value}: must be at least {least}")
    return value


def _run(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> int:
    if not arguments.command:
        parser.error("no command: write it after the options, such as rlcore ray --processes 2 train run.yaml")
    from rlcore_engines.ray.launch import start

    return start(
        Launch(
            words=arguments.command, processes=arguments.processes, address=arguments.address, cpus=arguments.cpus,
            gpus=arguments.gpus, spread=arguments.spread, restarts=arguments.restarts, env=arguments.env,
            start_timeout_s=arguments.start_timeout, end_timeout_s=arguments.end_timeout,
        )
    )  # fmt: skip


POLL_S = 0.3
"""How long a signal may wait until it is passed on."""


class Presses:
    """Signals to this process: the first is passed on, and a second Ctrl-C ends the ranks at once."""

    def __init__(self) -> None:
        self.received: list[int] = []

    @contextmanager
    def caught(self) -> Iterator[None]:
        """Receive signals in the block."""
        numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        before = {number: signal.signal(number, lambda got, _: self.received.append(got)) for number in numbers}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def answers(references: Sequence[Any], timeout_s: float, presses: Presses) -> list[Any]:
    """Return what actors of Ray answer.

    Raises:
        GetTimeoutError: one does not in time.
        KeyboardInterrupt: a signal has come meanwhile.
    """
    until, missing = time.monotonic() + timeout_s, list(references)
    while missing:
        if presses.received:
            raise KeyboardInterrupt
        if time.monotonic() > until:
            raise GetTimeoutError(f"no answer within {timeout_s:g} seconds")
        done, missing = ray.wait(missing, timeout=POLL_S)
        ray.get(done)  # raises the error of an actor before the others have answered
    return list(ray.get(list(references)))
