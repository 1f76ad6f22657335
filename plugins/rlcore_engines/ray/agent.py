"""The actor that runs one rank as a process of its own, and reports its output and its end; it imports no torch."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

import attrs
import ray

from rlcore_engines.ray.rank_environment import Place

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
        self._process: subprocess.Popen[bytes] | None = None
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
        self._process = subprocess.Popen(  # noqa: S603  the user's own command
            [sys.executable, "-P", "-m", "rlcore_engines.ray.rank", *words], env=own, cwd=folder,
            start_new_session=True, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
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
            found: Mapping[str, Any] = json.loads((self._folder / "error.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        return found

    def signal(self, number: int) -> None:
        """Send a signal to the rank."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._process.pid, number)

    def end(self) -> None:
        """End the rank at once, and all that it has started."""
        if self._process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)
