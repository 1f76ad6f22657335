"""The reward `math_accuracy`: 1 if the answer in an output equals that of a column as mathematics, else 0.

Also in this file: processes that compare answers as mathematics: a comparison may hang, fill the memory or kill its
process.
"""

from __future__ import annotations

import atexit
import functools
import hashlib
import json
import os
import queue
import select
import sys
import time
from collections import Counter, OrderedDict
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from subprocess import DEVNULL, PIPE
from threading import Lock
from typing import Any, Literal

from rlcore.child import ChildProcess
from rlcore.errors import PluginError
from rlcore_rewards.config import MathAccuracyConfig
from rlcore_rewards.parts import Tally, after, load, refuse_misfit, refuse_missing, signature

Outcome = Literal["equal", "different", "unparsed", "slow", "no gold"]
WORKER = Path(__file__).with_name("math_worker.py")
START_S = 60.0
"""Seconds that a process may take to start."""
GRACE_S = 1.0
"""Seconds after the time limit at which a process that does not stop by itself is ended."""
REMEMBERED = 65_536
"""Number of the latest comparisons that are not computed again."""


class _Worker:
    """One process, started at the first comparison and again after one that it did not survive."""

    def __init__(self, options: dict[str, Any]) -> None:
        self._options = options
        self._process: ChildProcess | None = None

    def compare(self, gold: str, answer: str) -> dict[str, Any] | None:
        """Return the reply; None if the process had to be ended, or ended by itself."""
        process = self._process or self._start()
        line = json.dumps({"gold": gold, "answer": answer}).encode() + b"\n"
        try:
            assert process.stdin is not None  # noqa: S101  it is a pipe
            process.stdin.write(line)
            process.stdin.flush()
            reply = self._reply(process, self._options["timeout_s"] + GRACE_S)
        except OSError:
            reply = None
        if reply is None:
            self.close()
        return reply

    def close(self) -> None:
        """End the process."""
        process, self._process = self._process, None
        if process is not None:
            process.end()

    def _start(self) -> ChildProcess:
        command = [sys.executable, "-P", str(WORKER), json.dumps(self._options)]
        process = self._process = ChildProcess(command, stdin=PIPE, stdout=PIPE, stderr=DEVNULL)
        if self._reply(process, START_S) is None:
            self.close()
            raise PluginError(
                f"math_accuracy: the process that compares answers did not start ({' '.join(command[:3])}); is "
                f"math_accuracy.memory_mb = {self._options['memory_mb']} too low?"
            )
        return process

    @staticmethod
    def _reply(process: ChildProcess, limit_s: float) -> dict[str, Any] | None:
        """Return the next line, or None if there is none within the limit."""
        assert process.stdout is not None  # noqa: S101  it is a pipe
        line, until = b"", time.monotonic() + limit_s
        poll = select.poll()
        poll.register(process.stdout, select.POLLIN)
        while not line.endswith(b"\n"):
            if not poll.poll(max(0.0, until - time.monotonic()) * 1000):
                return None
            part = os.read(process.stdout.fileno(), 4096)
            if not part:
                return None
            line += part
        reply: dict[str, object] = json.loads(line)
        return reply


class MathProcesses:
    """Compares answers with right ones in processes, and remembers the latest results.

    Args:
        processes: number of processes.
        options: those of `math_worker`.
    """

    def __init__(self, processes: int, options: dict[str, Any]) -> None:
        self._workers = [_Worker(options) for _ in range(processes)]
        self._known: OrderedDict[bytes, Outcome] = OrderedDict()
        self._lock = Lock()

    def compare(self, pairs: Sequence[tuple[str, str]]) -> list[Outcome]:
        """Return the outcome for each pair of a right answer and an output."""
        with self._lock:  # a run may score two sub-batches in two threads
            return self._compare(pairs)

    def _compare(self, pairs: Sequence[tuple[str, str]]) -> list[Outcome]:
        keys = [_key(gold, output) for gold, output in pairs]
        open_pairs = {key: pair for key, pair in zip(keys, pairs, strict=True) if key not in self._known}
        free: queue.SimpleQueue[_Worker] = queue.SimpleQueue()
        for worker in self._workers:
            free.put(worker)

        def compare(pair: tuple[str, str]) -> Outcome:
            worker = free.get()
            try:
                return _outcome(worker.compare(*pair))
            finally:
                free.put(worker)

        with ThreadPoolExecutor(len(self._workers)) as threads:
            outcomes = list(threads.map(compare, open_pairs.values()))
        found = {key: self._known[key] for key in keys if key in self._known}
        found |= dict(zip(open_pairs, outcomes, strict=True))
        self._known.update(found)
        while len(self._known) > REMEMBERED:
            self._known.popitem(last=False)
        return [found[key] for key in keys]

    def close(self) -> None:
        """End the processes; the next comparison starts them again."""
        with self._lock:
            for worker in self._workers:
                worker.close()


def shared_processes(config: MathAccuracyConfig) -> MathProcesses:
    """Return the processes of all rewards with the same options, such as one that reports what could be parsed."""
    options = {name: getattr(config, name) for name in ("decimals", "strict", "timeout_s", "memory_mb")}
    return _shared(os.getpid(), config.processes, json.dumps(options))


@functools.cache
def _shared(_process: int, processes: int, options: str) -> MathProcesses:
    """Return the processes that this process has started; a forked one starts its own."""
    started = MathProcesses(processes, json.loads(options))
    atexit.register(started.close)
    return started


def _key(gold: str, output: str) -> bytes:
    return hashlib.sha256(f"{len(gold)}:{gold}{output}".encode(errors="backslashreplace")).digest()


def _outcome(reply: dict[str, object] | None) -> Outcome:
    if reply is None or reply.get("slow"):
        return "slow"
    if not reply["gold"]:
        return "no gold"
    if not reply["answer"]:
        return "unparsed"
    return "equal" if reply["equal"] else "different"


class MathAccuracy:
    """A reward function that finds the answer in each output and compares it with a column, by math-verify.

    Args:
        config: the options.

    Raises:
        ConfigError: the column cannot be named.
        PluginError: math-verify is not installed, or the system is Windows.
    """

    def __init__(self, config: MathAccuracyConfig) -> None:
        if sys.platform == "win32":
            raise PluginError("reward 'math_accuracy' needs the signals and limits of POSIX; Windows has none")
        load("math_verify", reward="math_accuracy", extra="math")
        self.config, self._processes = config, shared_processes(config)
        self._tally = Tally("math_accuracy")
        self.__signature__ = signature("math_accuracy.column", [config.column])

    def __call__(self, *, outputs: Sequence[str], **columns: Sequence[object]) -> list[float | None]:
        """Return the reward of each output; None for a row whose own answer is missing or cannot be parsed."""
        refuse_missing([*self.__signature__.parameters.values()], columns)
        refuse_misfit(outputs, columns)
        golds = columns[self.config.column]
        rows = [i for i, gold in enumerate(golds) if gold is not None]
        found: list[Outcome] = ["no gold"] * len(outputs)
        pairs = [(str(golds[i]), after(outputs[i], self.config.after)) for i in rows]
        for i, outcome in zip(rows, self._processes.compare(pairs), strict=True):
            found[i] = outcome
        self._count(found)
        return [self._reward(outcome) for outcome in found]

    def close(self) -> None:
        """End the processes, and log how many outputs could not be parsed."""
        self._processes.close()
        self._tally.close()

    def _reward(self, outcome: Outcome) -> float | None:
        is_parsed = outcome in ("equal", "different")
        if outcome == "no gold" or (not is_parsed and self.config.unparsed is None):
            return None
        if self.config.report == "parsed":
            return float(is_parsed)
        return float(outcome == "equal") if is_parsed else self.config.unparsed

    def _count(self, found: Sequence[Outcome]) -> None:
        config, numbers = self.config, Counter(found)
        get = "no reward" if config.unparsed is None else f"{config.unparsed:g}"
        texts: dict[Outcome, str] = {
            "unparsed": f"outputs have no answer that can be parsed, and get {get}",
            "slow": f"outputs took longer than math_accuracy.timeout_s = {config.timeout_s:g}, or more memory than "
            f"math_accuracy.memory_mb = {config.memory_mb}, and get {get}",
            "no gold": f"outputs have no answer in the column '{config.column}' that can be parsed, and get no reward",
        }
        is_counted = config.report == "accuracy"  # once for both
        self._tally.add(len(found), {texts[key]: numbers[key] for key in texts if is_counted and numbers[key]})
