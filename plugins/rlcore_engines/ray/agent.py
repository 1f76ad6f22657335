"""The actor that runs one rank as a process of its own, and reports its output and its end; it imports no torch.

Also in this file: the order of ranks on the machines of a cluster, and the environment variables that torchrun would
give them.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from subprocess import PIPE
from typing import IO, Any

import attrs
import ray

from rlcore.child import ChildProcess


@attrs.frozen
class Place:
    """Where an actor runs.

    Attributes:
        machine: id of the machine.
        host: its address, at which the other machines reach it.
        port: a free port there.
        gpus: the GPUs there that Ray has given to the actor.
    """

    machine: str
    host: str
    port: int
    gpus: tuple[str, ...] = ()


def order(places: Sequence[Place]) -> list[int]:
    """Return the indices of places by rank: those on one machine follow one another, the machine of the first first."""
    machines = list(dict.fromkeys(place.machine for place in places))
    return sorted(range(len(places)), key=lambda index: (machines.index(places[index].machine), index))


def environments(places: Sequence[Place], *, run_id: str, attempt: int, restarts: int) -> list[dict[str, str]]:
    """Return the variables of each rank.

    Every rank of a machine sees all GPUs of the run there, in the order of the ranks, as torch expects: rank i of the
    machine computes on the i-th.

    Args:
        places: of the ranks, in the order that `order` returns.
        run_id: the same for all ranks and attempts.
        attempt: how often the run has been started before.
        restarts: most times that it is started again.
    """
    machines = list(dict.fromkeys(place.machine for place in places))
    by_machine: Mapping[str, list[int]] = {
        machine: [rank for rank, place in enumerate(places) if place.machine == machine] for machine in machines
    }
    common = {
        "WORLD_SIZE": len(places), "ROLE_WORLD_SIZE": len(places), "GROUP_WORLD_SIZE": len(machines),
        "ROLE_NAME": "default", "MASTER_ADDR": places[0].host, "MASTER_PORT": places[0].port,
        "TORCHELASTIC_RUN_ID": run_id, "TORCHELASTIC_RESTART_COUNT": attempt, "TORCHELASTIC_MAX_RESTARTS": restarts,
        "TORCHELASTIC_USE_AGENT_STORE": False, "RLCORE_STARTED": 1,
    }  # fmt: skip
    found = []
    for rank, place in enumerate(places):
        local = by_machine[place.machine]
        own = {
            "RANK": rank, "ROLE_RANK": rank, "LOCAL_RANK": local.index(rank), "LOCAL_WORLD_SIZE": len(local),
            "GROUP_RANK": machines.index(place.machine),
        }  # fmt: skip
        gpus = [gpu for each in local for gpu in places[each].gpus]
        seen = {"CUDA_VISIBLE_DEVICES": ",".join(gpus)} if gpus else {}
        found.append({name: str(value) for name, value in (common | own | seen).items()})
    return found


OF_RAY = "RAY_"
"""Variables of Ray's own processes, which would make a rank take itself for one of them."""
OUT, ERR = 1, 2


@attrs.frozen
class News:
    """What a rank has done since it was asked last.

    Attributes:
        written: numbers of the standard streams, and what was written to them, in the order of time.
        code: its exit code; None while it runs.
        error: what it recorded as its error: `message`, `code` and `time_ns`.
    """

    written: Sequence[tuple[int, bytes]]
    code: int | None = None
    error: Mapping[str, Any] | None = None


class Agent:
    """Runs a rank."""

    def __init__(self) -> None:
        self._process: ChildProcess | None = None
        self._written: deque[tuple[int, bytes]] = deque()
        self._news = threading.Condition()
        self._threads: list[threading.Thread] = []
        self._folder = Path(tempfile.mkdtemp(prefix="rlcore-rank-"))

    def place(self) -> Place:
        """Return where this actor runs."""
        context, host = ray.get_runtime_context(), ray.util.get_node_ip_address()
        with socket.create_server((host, 0)) as server:
            port = server.getsockname()[1]
        return Place(context.get_node_id(), host, port, tuple(str(each) for each in ray.get_gpu_ids()))

    def start(self, words: Sequence[str], variables: Mapping[str, str], folder: str) -> None:
        """Start the rank.

        Args:
            words: the arguments of `rlcore`.
            variables: added to the environment.
            folder: the working folder.

        Raises:
            FileNotFoundError: there is no such folder on this machine.
        """
        if not Path(folder).is_dir():
            raise FileNotFoundError(f"{socket.gethostname()} has no folder {folder}, in which the command was given")
        own = {name: value for name, value in os.environ.items() if not name.startswith(OF_RAY)}
        own |= {**variables, "TORCHELASTIC_ERROR_FILE": str(self._folder / "error.json")}
        command = [sys.executable, "-P", "-m", "rlcore_engines.ray.rank", *words]
        self._process = ChildProcess(command, env=own, cwd=folder, stdout=PIPE, stderr=PIPE)
        for number, stream in ((OUT, self._process.stdout), (ERR, self._process.stderr)):
            thread = threading.Thread(target=self._read, args=(number, stream), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _read(self, number: int, stream: IO[bytes]) -> None:
        while part := os.read(stream.fileno(), 1 << 16):
            with self._news:
                self._written.append((number, part))
                self._news.notify_all()
        with self._news:
            self._news.notify_all()

    def listen(self, patience_s: float) -> News:
        """Return news of the rank, as soon as there are any or after `patience_s` seconds."""
        process = self._process
        if process is None:
            return News(())
        with self._news:
            self._news.wait_for(lambda: self._written or not self._is_read, patience_s)
            written = tuple(self._written)
            self._written.clear()
        if self._is_read:
            return News(written)
        code = process.wait()
        return News((*written, *self._written), code, self._error())

    @property
    def _is_read(self) -> bool:
        """Whether the output of the rank goes on."""
        return any(thread.is_alive() for thread in self._threads)

    def _error(self) -> Mapping[str, Any] | None:
        try:
            found: Mapping[str, object] = json.loads((self._folder / "error.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        return found

    def signal(self, number: int) -> None:
        """Send a signal to the rank."""
        if self._process is not None:
            self._process.send_signal(number)

    def end(self) -> None:
        """End the rank at once, and all that it has started."""
        if self._process is not None:
            self._process.end()
        shutil.rmtree(self._folder, ignore_errors=True)
