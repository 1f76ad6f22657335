"""A trial's process, as the sweep sees it: its start, its stop, and the reason of its end.

Also in this file: Ctrl-C and SIGTERM while a sweep runs; the metric of a run, read from its metrics.jsonl while the
run writes it.
"""

from __future__ import annotations

import difflib
import json
import math
import os
import re
import signal
import sys
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from subprocess import PIPE, STDOUT
from types import FrameType, TracebackType
from typing import Any, Literal, Self

import attrs

from rlcore.child import ChildProcess, tail
from rlcore.safe_text import visible

MOST_AT_ONCE = 4
"""Measurements of one reading that are all kept."""


@attrs.define
class MetricFile:
    """The measurements of one metric.

    Attributes:
        file: metrics.jsonl, which may not exist yet, and which a resumed run replaces by a shorter one.
        metric: name of the metric.
        names: all metrics that the file has.
        last_step: the last step with metrics; 0 without any.
        is_missing: whether an evaluation was written without the metric, which is an evaluation's.
    """

    file: Path
    metric: str
    names: dict[str, None] = attrs.field(factory=dict)
    last_step: int = 0
    is_missing: bool = False
    _offset: int = 0
    _inode: int = 0

    def read(self) -> list[tuple[int, float]]:
        """Return new measurements: step and value, nan for one that is not finite."""
        try:
            with self.file.open("rb") as lines:
                self._seek(lines)
                return [pair for line in lines if (pair := self._take(line)) is not None]
        except OSError:  # the run has not begun to write, or replaces the file just now
            return []

    def _seek(self, lines: Any) -> None:
        """Go on where the last call ended; at the beginning if it is another file."""
        found = os.fstat(lines.fileno())
        if (found.st_ino, found.st_size >= self._offset) != (self._inode, True):
            self._offset, self._inode = 0, found.st_ino
        lines.seek(self._offset)

    def _take(self, line: bytes) -> tuple[int, float] | None:
        """Return the measurement of a line; None if it has none or is not complete."""
        if not line.endswith(b"\n"):
            return None
        self._offset += len(line)
        try:
            row = json.loads(line)
            step = row.pop("step")
        except (ValueError, KeyError, AttributeError, TypeError):
            return None
        if not isinstance(step, int):
            return None
        self.names.update(dict.fromkeys(row))
        self.last_step = step
        if self.metric in row:
            value = row[self.metric]
            return step, float(value) if isinstance(value, int | float) else math.nan
        self.is_missing |= self.metric.startswith("eval/") and any(name.startswith("eval/") for name in row)
        return None


def thinned(measured: Sequence[tuple[int, float]], mode: str, every: int | None = None) -> list[tuple[int, float]]:
    """Return measurements that were read at once; of many, those that count, because storing each takes time.

    These are the best and the last, and, of a population, the first after each `every` steps.
    """
    if len(measured) <= MOST_AT_ONCE:
        return list(measured)
    finite = [pair for pair in measured if math.isfinite(pair[1])]
    best = (max if mode == "max" else min)(finite, key=lambda pair: pair[1], default=measured[-1])
    firsts = {pair[0] // every: pair for pair in reversed(measured)} if every else {}
    return sorted({best, measured[-1], *firsts.values()})


def missing_metric(metric: str, names: Iterable[str]) -> str:
    """Return what is wrong with the name of a metric that a run does not have."""
    known = sorted(names)
    if not known:
        return f"metrics.jsonl has no metrics at all, and so no {metric}: the run ended before its first step"
    near = difflib.get_close_matches(metric, known, n=1)
    hint = f" Did you mean {near[0]}?" if near else ""
    evaluations = [name for name in known if name.startswith("eval/")]
    others = [name for name in known if not name.startswith("eval/")]
    return (
        f"no run has the metric {metric}.{hint} Evaluations have: {', '.join(evaluations) or 'nothing'}. "
        f"Steps have: {', '.join(others) or 'nothing'}"
    )


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
    process: ChildProcess
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
        self.process.end()

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
            return tail(file, LAST_BYTES, self.log_begin)

    def _send(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            self.process.send_signal(number)


def command_for(configuration: Path) -> list[str]:
    """Return the command that trains with a configuration."""
    return [sys.executable, "-m", "rlcore_tools.sweep.trial_process", str(configuration)]


def start(
    number: int, command: Sequence[str], *, log: Path, metrics: MetricFile, environment: Mapping[str, str]
) -> Child:
    """Start the process of a trial; what it prints is appended to `log`."""
    with log.open("ab") as out:
        begin = out.tell()
        process = ChildProcess(command, stdin=PIPE, stdout=out, stderr=STDOUT, env={**os.environ, **environment})
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


MOST = 2
"""Signals that wait for the next pause; later ones raise KeyboardInterrupt wherever the process is."""


class Interruptions:
    """Raises KeyboardInterrupt for SIGINT and SIGTERM in `pause` only, within the `with` block.

    An exception that a signal raises anywhere can leave the lock of a `subprocess.Popen` taken, and the wait for that
    process then never ends.
    """

    def __init__(self) -> None:
        self._received = 0
        self._raised = 0
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Self:
        self._before = {number: signal.signal(number, self._receive) for number in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _receive(self, _number: int, _frame: FrameType | None) -> None:
        self._received += 1
        if self._received > MOST:
            raise KeyboardInterrupt

    def pause(self, seconds: float) -> None:
        """Sleep.

        Raises:
            KeyboardInterrupt: a signal has come since the last pause, or came during this one.
        """
        time.sleep(seconds)
        if self._received > self._raised:
            self._raised += 1
            raise KeyboardInterrupt
