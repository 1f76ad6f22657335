"""A process with environments, and calls of it: requests and answers are lines of JSON.

Also in this file: environments in processes of their own: `data.episodes.isolate`, with the Python of
`data.episodes.python`.
"""

from __future__ import annotations

import atexit
import base64
import contextlib
import itertools
import json
import pickle
import sys
import sysconfig
import tempfile
import threading
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from pathlib import Path
from subprocess import PIPE
from typing import Any, Literal

from rlcore.child import ChildProcess, tail
from rlcore.errors import ConfigError
from rlcore.protocols import Turn
from rlcore.safe_text import show
from rlcore_environments.answers import Factory, check_methods, check_tools, stated
from rlcore_environments.calls import CallTooLate, Limit, allow_more
from rlcore_environments.worker import STATED, plain_value

WORKER = Path(__file__).with_name("worker.py")
TAIL = 500
"""Characters of a process's last output in messages."""
START_S = 300.0
"""The longest time in which a process loads its environment."""
PING_S = 5.0
"""The longest time in which a process that has a late call answers whether it still works."""


class RemoteError(Exception):
    """What an environment raised in its process: the kind and the message of the exception."""


class ProcessDied(Exception):
    """The process of an environment ended, and its episodes with it."""


class Worker:
    """A process with environments.

    Args:
        given: what the process loads, `reference` or `pickle`, and with `thread` = `main` that it runs all calls in its
            main thread.
        python: the interpreter.
        timeout_s: seconds that a call may take.

    Raises:
        ConfigError: the process does not start, or cannot load the environment.
    """

    def __init__(self, given: Mapping[str, str], python: str, timeout_s: float = 60.0) -> None:
        self._timeout_s = timeout_s
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115  closed with the process
        try:
            command = [python, "-u", str(WORKER)]
            self._process = ChildProcess(command, stdin=PIPE, stdout=PIPE, stderr=self._errors)
        except OSError as error:
            raise ConfigError(f"data.episodes.python = {python!r}: cannot be started: {error.strerror}") from error
        self._lock, self._ids, self._waiting = threading.Lock(), itertools.count(1), dict[int, Future[Any]]()
        self._limits = dict[int, Limit]()
        atexit.register(self.close)
        begun: Future[Any] = Future()
        self._waiting[0] = begun
        threading.Thread(target=self._read, name="rlcore-isolated", daemon=True).start()
        self._send({**given, "path": _own_folders(), "here": str(Path.cwd())})
        try:
            begun.result(START_S)
        except FutureTimeout:
            self.close()
            raise ConfigError(
                f"data.environment: its process ({python}) did not load it within {START_S:g} seconds"
            ) from None
        except (RemoteError, ProcessDied) as error:
            self.close()
            raise ConfigError(
                f"data.environment: its process ({python}) could not load it: {error}{_advice(str(error))}"
            ) from error

    @property
    def is_alive(self) -> bool:
        """Whether the process runs."""
        return self._process.poll() is None

    def call(self, method: str, episode: int = 0, **arguments: object) -> Any:
        """Return the answer of the process; one that answers nothing any more is ended.

        Raises:
            RemoteError: the environment raised.
            ProcessDied: the process has ended.
            CallTooLate: it has not answered in time.
        """
        limit = START_S if method in ("describe", "rows") else self._timeout_s
        try:
            return self._answer(method, episode, arguments, limit)
        except FutureTimeout:
            self.end_if_stuck()
            raise CallTooLate(f"did not return within data.episodes.timeout_s = {limit:g} seconds") from None

    @property
    def is_late(self) -> bool:
        """Whether a call is late, or nearly so."""
        return any(limit.left < 0.1 * self._timeout_s for limit in list(self._limits.values()))

    def end_if_stuck(self) -> None:
        """End the process if it does not answer any more; environments in other calls of it may still work."""
        try:
            self._answer("ping", 0, {}, PING_S)
        except FutureTimeout:
            self.close()
        except ProcessDied:
            pass

    def _answer(self, method: str, episode: int, arguments: Mapping[str, object], limit_s: float) -> Any:
        answer: Future[Any] = Future()
        number = next(self._ids)
        limit = Limit(limit_s)
        self._waiting[number], self._limits[number] = answer, limit
        try:
            if not self.is_alive:
                raise ProcessDied(self._epitaph())
            self._send({"id": number, "method": method, "episode": episode, "arguments": arguments})
            while True:
                try:
                    return answer.result(max(limit.left, 0.0))
                except FutureTimeout:
                    if limit.left <= 0:
                        raise
        finally:
            self._waiting.pop(number, None)
            self._limits.pop(number, None)

    def close(self) -> None:
        """End the process, and what it started."""
        atexit.unregister(self.close)
        self._process.end()

    def _send(self, request: Mapping[str, object]) -> None:
        line = json.dumps(request, default=plain_value).encode() + b"\n"
        if not self._lock.acquire(timeout=PING_S):  # it reads nothing, and an earlier request fills the pipe
            return
        try:
            with contextlib.suppress(BrokenPipeError, ValueError):  # `_read` reports the end
                assert self._process.stdin is not None  # noqa: S101  it is a pipe
                self._process.stdin.write(line)
                self._process.stdin.flush()
        finally:
            self._lock.release()

    def _read(self) -> None:
        assert self._process.stdout is not None  # noqa: S101  it is a pipe
        for line in self._process.stdout:
            answer = json.loads(line)
            if "more" in answer:
                if (limit := self._limits.get(answer["id"])) is not None:
                    limit.allow(answer["more"])
                continue
            waiting = self._waiting.pop(answer["id"], None)
            if waiting is None:
                continue
            if "error" in answer:
                waiting.set_exception(RemoteError(answer["error"]))
            else:
                waiting.set_result(answer["result"])
        self._process.wait()
        for number in list(self._waiting):
            if (waiting := self._waiting.pop(number, None)) is not None:
                waiting.set_exception(ProcessDied(self._epitaph()))

    def _epitaph(self) -> str:
        last = tail(self._errors, TAIL).strip()
        return f"its process ended with code {self._process.poll()}" + (f"; its last output: {last}" if last else "")


def _own_folders() -> list[str]:
    """Return the folders of sys.path that belong to no installation: those with the user's modules."""
    installed = tuple(sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib", "purelib", "platlib"))
    folders = [folder or str(Path.cwd()) for folder in sys.path]
    return [folder for folder in folders if not folder.startswith(installed) and not folder.endswith(".zip")]


def _advice(error: str) -> str:
    if "ModuleNotFoundError" in error:
        return f"; searched: the modules of this interpreter, and {Path.cwd()}"
    if "'__main__'" in error:
        return (
            "; what a script defines exists in its own process alone: put it into a module, and name module:attribute"
        )
    return ""


class Workers:
    """Starts processes when they are needed, one for all episodes or one for each, and again when one has died."""

    def __init__(self, given: Mapping[str, str], python: str, timeout_s: float, *, one_each: bool) -> None:
        self._given, self._python, self._timeout_s, self._one_each = given, python, timeout_s, one_each
        self._lock, self._shared, self._episodes = threading.Lock(), list[Worker](), itertools.count(1)

    def get(self) -> tuple[Worker, int]:
        """Return a process for an episode, and the number of the episode.

        The time in which a process starts, or in which another call starts it, is no time of the call.
        """
        allow_more(START_S + self._timeout_s)
        if self._one_each:
            return Worker(self._given, self._python, self._timeout_s), next(self._episodes)
        with self._lock:
            if self._shared and self._shared[-1].is_late:
                self._shared[-1].end_if_stuck()
            if not self._shared or not self._shared[-1].is_alive:
                self._shared.append(Worker(self._given, self._python, self._timeout_s))
            return self._shared[-1], next(self._episodes)

    @property
    def keeps(self) -> bool:
        """Whether a process stays when an episode ends."""
        return not self._one_each

    def close(self) -> None:
        """End all processes that stay."""
        with self._lock:
            for worker in self._shared:
                worker.close()
            self._shared.clear()


class RemoteEnvironment:
    """One episode in a process."""

    def __init__(self, workers: Workers) -> None:
        self._workers = workers
        self._worker, self._episode = workers.get()

    def reset(self, row: Mapping[str, object], *, seed: int) -> Any:
        """Return the first messages."""
        return self._worker.call("reset", self._episode, row=dict(row), seed=seed)

    def step(self, turn: Turn) -> Any:
        """Return the answer to a turn."""
        calls = [dict(call) for call in turn.tool_calls]
        return self._worker.call(
            "step", self._episode, text=turn.text, index=turn.index, truncated=turn.truncated, tool_calls=calls
        )

    def close(self) -> None:
        """Close the environment, and end its process if it has one of its own."""
        try:
            if self._worker.is_alive:
                self._worker.call("close", self._episode)
        finally:
            if not self._workers.keeps:
                self._worker.close()


def isolated_factory(
    environment: object,
    python: str | None,
    *,
    one_each: bool,
    timeout_s: float = 60.0,
    thread: Literal["episode", "main"] = "episode",
) -> Factory:
    """Return a factory of environments in processes.

    Args:
        environment: `module:attribute`, which only the process imports, or a class or factory that can be pickled.
        python: the interpreter of the process; by default this one.
        one_each: a process for each episode.
        timeout_s: seconds that a call may take.
        thread: the thread of the process in which calls run: one for each episode, or the main one.

    Raises:
        ConfigError: the environment cannot be sent to a process, or the process cannot load it.
    """
    workers = Workers({**_given(environment), "thread": thread}, python or sys.executable, timeout_s, one_each=one_each)
    worker, _ = workers.get()
    about = worker.call("describe")
    check_tools(about["tools"])
    check_methods(about["name"], about["wrong"])

    has_rows = about["has_rows"] and not about["wrong_rows"]

    def rows(split: str) -> Any:
        return workers.get()[0].call("rows", split=split)

    shutdown: Callable[[], None] = workers.close
    if one_each:
        own = {split: worker.call("rows", split=split) for split in ("train", "eval") if has_rows}
        worker.close()
        rows_of = own.__getitem__ if own else rows if about["wrong_rows"] else None
    else:
        rows_of = rows if about["has_rows"] else None
    facts = stated({each: about[each] for each in STATED}, about["name"])
    if thread == "main" and not one_each:  # calls that wait for others would be late
        facts["concurrency"] = 1
    return Factory(
        name=about["name"], make=lambda: RemoteEnvironment(workers), tools=about["tools"], is_remote=True,
        own_rows=rows_of, wrong_rows=about["wrong_rows"], shutdown=shutdown, source=about["source"], **facts,
    )  # fmt: skip


def _given(environment: object) -> dict[str, str]:
    if isinstance(environment, str):
        return {"reference": environment}
    try:
        return {"pickle": base64.b64encode(pickle.dumps(environment)).decode()}
    except Exception as error:  # pickle raises many kinds
        raise ConfigError(
            f"data.episodes.isolate: {show(environment)} cannot be sent to another process ({error}); define it in a "
            "module, and name it as environment='module:attribute'"
        ) from error
