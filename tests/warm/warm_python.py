"""Start Python processes without importing torch and transformers again, which takes seconds of CPU time each.

The processes are forks of one process that has imported these libraries and nothing of rlcore. Each has its own folder,
environment, arguments, output, seeds and exit status, and runs its module or file from the first line, as `python`
would; it imports rlcore and its plugins itself. Processes that run together are forked in turn from two such servers,
so that strings have other hashes in the second process, as under torchrun. Environment variables that Python and the
libraries read on import (PYTHONHASHSEED, HF_HUB_OFFLINE) are those of the server.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from threading import Event, Timer
from typing import Any

SERVER = Path(__file__).with_name("warm_server.py")
NUM_SERVERS = 2
Done = subprocess.CompletedProcess[str]


class WarmPython:
    """The forking server processes; each starts on first use.

    Args:
        folder: where outputs of processes are written.
        libraries: third-party modules that they import besides those of every run.
        python: the interpreter, if not that of this process.
    """

    def __init__(self, folder: Path, libraries: Sequence[str] = (), *, python: Path = Path(sys.executable)) -> None:
        self.folder, self.libraries, self.python = folder, libraries, python
        self._servers: list[subprocess.Popen[str]] = []

    def run(
        self, arguments: Sequence[str], *, cwd: Path, environment: Mapping[str, str], timeout_s: float = 300.0
    ) -> Done:
        """Run `python *arguments`, a module or a file; processes it leaves running in its session are killed."""
        return self.run_together(arguments, cwd=cwd, environments=[environment], timeout_s=timeout_s)[0]

    def run_together(
        self, arguments: Sequence[str], *, cwd: Path, environments: Sequence[Mapping[str, str]], timeout_s: float
    ) -> list[Done]:
        """Do the same in one process per environment, all at the same time.

        Raises:
            subprocess.TimeoutExpired: they took longer, and were killed.
        """
        outputs = [self._outputs(number) for number in range(len(environments))]
        servers = [number % NUM_SERVERS for number in range(len(environments))]
        request = {"arguments": list(arguments), "cwd": str(cwd)}
        children = [
            self._ask(server, {**request, "environment": dict(environment), **files})
            for server, environment, files in zip(servers, environments, outputs, strict=True)
        ]
        late = Event()
        timer = Timer(timeout_s, lambda: (late.set(), _kill(children)))
        timer.daemon = True
        timer.start()
        try:
            codes = [self._ask(server, {"wait": child}) for server, child in zip(servers, children, strict=True)]
        finally:  # also if the tests are interrupted
            timer.cancel()
            _kill(children)
        said = [[Path(files[name]).read_text(encoding="utf-8") for name in ("stdout", "stderr")] for files in outputs]
        if late.is_set():
            raise subprocess.TimeoutExpired(list(arguments), timeout_s, *said[0])
        return [
            subprocess.CompletedProcess(list(arguments), code, *texts) for code, texts in zip(codes, said, strict=True)
        ]

    def close(self) -> None:
        """Stop the server processes."""
        for server in self._servers:
            server.communicate()

    def _outputs(self, number: int) -> dict[str, str]:
        files = {name: self.folder / f"{name}-{number}" for name in ("stdout", "stderr")}
        for file in files.values():
            file.write_text("", encoding="utf-8")
        return {name: str(file) for name, file in files.items()}

    def _ask(self, number: int, request: Mapping[str, Any]) -> int:
        """Return a server's answer; servers start on first use, in order."""
        if number == len(self._servers):
            kept = {name: value for name, value in os.environ.items() if not name.startswith(("RLCORE_", "PYTHON"))}
            command = [str(self.python), str(SERVER), *self.libraries]
            self._servers.append(
                subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=kept)
            )
        server = self._servers[number]
        assert server.stdin is not None
        assert server.stdout is not None
        print(json.dumps(request), file=server.stdin, flush=True)
        return int(server.stdout.readline())


def _kill(leaders: Sequence[int]) -> None:
    """Kill the sessions of these processes."""
    for leader in leaders:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(leader, signal.SIGKILL)
