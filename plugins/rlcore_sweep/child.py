"""A trial's process, as the sweep sees it: its start, its stop, and the reason of its end."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Literal

import attrs

from rlcore.safe_text import visible
from rlcore_sweep.metric_file import MetricFile

PATIENCE_S = 300.0
"""How long a stopped trial may take to finish its step and save; after half of this, it is asked to stop at once."""
LAST_BYTES = 20_000
INTERRUPTED = 130
"""Exit code of a command that a signal ended before its run began, as while a cluster has no room for it."""
_ERROR = re.compile(r"^[A-Za-z_][\w.]*(?:Error|Exists|InUse|Diverged|Interrupt|Exception|Unknown\w+)\b.*")
_STOPPED = re.compile(r"^SIG(?:TERM|INT): finishing", re.MULTILINE)
Why = Literal["", "pruned", "replaced", "late", "metric", "end"]
"""Why the sweep stopped a trial: it was pruned, goes on from another's checkpoint, took too long, lacks the metric, or
the sweep ends; or it did not."""


@attrs.define(eq=False)
class Child:
    """The process of one trial.

    Attributes:
        number: the trial.
        process: the process, leader of a session of its own.
        log: what it prints; `log_begin` is where this process began to print.
        metrics: the metric that it writes.
        began: clock reading at its start, in seconds.
        why: why the sweep stopped it.
        stopped: clock reading when it was asked to stop.
    """

    number: int
    process: subprocess.Popen[bytes]
    log: Path
    log_begin: int
    metrics: MetricFile
    began: float = attrs.field(factory=time.monotonic)
    why: Why = ""
    stopped: float = 0.0
    _urged: bool = False

    @property
    def seconds(self) -> float:
        """Return how long it has run."""
        return time.monotonic() - self.began

    def stop(self, why: Why) -> None:
        """Send the process a signal, upon which it finishes its step, saves and ends."""
        if not self.why:
            self.why, self.stopped = why, time.monotonic()
            self._send(signal.SIGTERM)

    def urge(self) -> None:
        """End a process that has been asked to stop and takes too long: it stops at once, and in the end is killed."""
        waited = time.monotonic() - self.stopped
        if self.why and waited > PATIENCE_S / 2 and not self._urged:
            self._urged = True
            self._send(signal.SIGTERM)
        if self.why and waited > PATIENCE_S:
            self.kill()

    def kill(self) -> None:
        """End the process and all that it has started at once."""
        with suppress(OSError):
            os.killpg(self.process.pid, signal.SIGKILL)

    def close(self) -> None:
        """Release what belongs to a process that has ended."""
        self.process.wait()
        if self.process.stdin is not None:
            with suppress(OSError):
                self.process.stdin.close()
        self.kill()  # processes of the run that have outlived it

    def failure(self) -> str:
        """Return why a process that has ended failed; empty if it did not."""
        code = self.process.returncode
        if code == 0:
            return ""
        if code < 0:
            name = signal.Signals(-code).name
            return f"its process was ended by {name}{', as for lack of memory' if name == 'SIGKILL' else ''}"
        lines = [line.strip() for line in self._printed().splitlines() if line.strip()]
        errors = [line for line in lines if _ERROR.match(line)]
        said = errors[-1] if errors else lines[-1] if lines else "it printed nothing"
        return visible(said if errors else f"exit code {code}: {said}")

    def was_interrupted(self) -> bool:
        """Return whether a signal from elsewhere ended the run early; its checkpoints are as good as before."""
        if self.why or self.process.returncode not in (0, INTERRUPTED, -signal.SIGTERM, -signal.SIGINT):
            return False
        return self.process.returncode != 0 or _STOPPED.search(self._printed()) is not None

    def _printed(self) -> str:
        with self.log.open("rb") as file:
            end = file.seek(0, os.SEEK_END)
            file.seek(max(self.log_begin, end - LAST_BYTES))
            return file.read().decode("utf-8", errors="replace")

    def _send(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            self.process.send_signal(number)


def command_for(configuration: Path) -> list[str]:
    """Return the command that trains with a configuration."""
    return [sys.executable, "-m", "rlcore_sweep.trial_process", str(configuration)]


def start(
    number: int, command: Sequence[str], *, log: Path, metrics: MetricFile, environment: Mapping[str, str]
) -> Child:
    """Start the process of a trial; what it prints is appended to `log`."""
    with log.open("ab") as out:
        begin = out.tell()
        process = subprocess.Popen(  # noqa: S603  the sweep's own command
            list(command), stdin=subprocess.PIPE, stdout=out, stderr=subprocess.STDOUT, start_new_session=True,
            env={**os.environ, **environment},
        )  # fmt: skip
    return Child(number, process, log, begin, metrics)


def environment_of(slot: int, parallel: int, *, gpus: Sequence[str], cores: int, processes: int) -> dict[str, str]:
    """Return the environment variables of a trial that divide the machine among trials that run together.

    Args:
        slot: which of the trials that run together it is, from 0.
        parallel: how many run together.
        gpus: names of the GPUs, as in CUDA_VISIBLE_DEVICES.
        cores: cores of the machine.
        processes: processes of each trial; several use the GPUs as they are.
    """
    found = {}
    if parallel > 1 and "OMP_NUM_THREADS" not in os.environ:
        found["OMP_NUM_THREADS"] = str(max(1, cores // parallel))
    if parallel > 1 and len(gpus) > 1 and processes == 1:
        found["CUDA_VISIBLE_DEVICES"] = gpus[slot % len(gpus)]
    return found


def visible_gpus() -> list[str]:
    """Return the names of the GPUs that processes of this one see."""
    import torch

    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if named is not None:
        return [name.strip() for name in named.split(",") if name.strip()]
    return [str(number) for number in range(torch.cuda.device_count())]
