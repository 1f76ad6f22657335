"""Start Python processes without importing torch and transformers again, which takes seconds of CPU time each.

The processes are forks of one process that has imported these libraries and nothing of rlcore. Each has its own folder,
environment, arguments, output, seeds and exit status, and runs its module or file from the first line, as `python`
would; it imports rlcore and its plugins itself. Environment variables that Python and the libraries read on import
(PYTHONHASHSEED, HF_HUB_OFFLINE) are those of the tests, and equal in all processes: tests that depend on them, for
example on whether ranks agree on the order of a set, need new interpreters.
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
from typing import IO, Any

SERVER = Path(__file__).with_name("warm_server.py")
Done = subprocess.CompletedProcess[str]


class WarmPython:
    """The forking server process; it starts on first use."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._server: subprocess.Popen[str] | None = None

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
        processes = [self._process(number, environment) for number, environment in enumerate(environments)]
        asked, answered = self._pipes()
        request = {"arguments": list(arguments), "cwd": str(cwd), "processes": processes}
        print(json.dumps(request), file=asked, flush=True)
        children = json.loads(answered.readline())
        late = Event()
        timer = Timer(timeout_s, lambda: (late.set(), _kill(children)))
        timer.daemon = True
        timer.start()
        try:
            codes = json.loads(answered.readline())
        finally:  # also if the tests are interrupted
            timer.cancel()
            _kill(children)
        said = [[Path(each[name]).read_text(encoding="utf-8") for name in ("stdout", "stderr")] for each in processes]
        if late.is_set():
            raise subprocess.TimeoutExpired(list(arguments), timeout_s, *said[0])
        return [subprocess.CompletedProcess(list(arguments), codes[i], *texts) for i, texts in enumerate(said)]

    def close(self) -> None:
        """Stop the server process."""
        if self._server is not None:
            self._server.communicate()

    def _process(self, number: int, environment: Mapping[str, str]) -> dict[str, Any]:
        files = {name: self.folder / f"{name}-{number}" for name in ("stdout", "stderr")}
        for file in files.values():
            file.write_text("", encoding="utf-8")
        return {"environment": dict(environment)} | {name: str(file) for name, file in files.items()}

    def _pipes(self) -> tuple[IO[str], IO[str]]:
        if self._server is None:
            kept = {name: value for name, value in os.environ.items() if not name.startswith(("RLCORE_", "PYTHON"))}
            self._server = subprocess.Popen(
                [sys.executable, str(SERVER)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=kept
            )
        assert self._server.stdin is not None
        assert self._server.stdout is not None
        return self._server.stdin, self._server.stdout


def _kill(leaders: Sequence[int]) -> None:
    """Kill the sessions of these processes."""
    for leader in leaders:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(leader, signal.SIGKILL)
