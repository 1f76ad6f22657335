"""Environments in processes of their own: `data.episodes.isolate`, with the Python of `data.episodes.python`."""

from __future__ import annotations

import base64
import itertools
import pickle
import sys
import threading
from collections.abc import Callable, Mapping
from typing import Any, Literal

from rlcore.errors import ConfigError
from rlcore.protocols import Turn
from rlcore.safe_text import show
from rlcore_environments.calls import allow_more
from rlcore_environments.factory import Factory, check_methods, check_tools, stated
from rlcore_environments.process import START_S, Worker
from rlcore_environments.worker import STATED


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

    def reset(self, row: Mapping[str, Any], *, seed: int) -> Any:
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
    environment: Any,
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


def _given(environment: Any) -> dict[str, str]:
    if isinstance(environment, str):
        return {"reference": environment}
    try:
        return {"pickle": base64.b64encode(pickle.dumps(environment)).decode()}
    except Exception as error:  # pickle raises many kinds
        raise ConfigError(
            f"data.episodes.isolate: {show(environment)} cannot be sent to another process ({error}); define it in a "
            "module, and name it as environment='module:attribute'"
        ) from error
