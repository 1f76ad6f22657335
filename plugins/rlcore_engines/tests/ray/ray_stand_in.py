"""A Ray in this process: actors are objects, calls of them run when their answer is waited for, and fail on request.

It has what the sampler calls of Ray. Handles behave as Ray's do: after an actor has died, it is made anew with the same
arguments as often as `max_restarts` allows, and what was asked of it fails.
"""

from __future__ import annotations

import asyncio
import inspect
import itertools
import pickle
import time
from collections import deque
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
from ray.exceptions import ActorDiedError, ActorUnavailableError, GetTimeoutError, RayTaskError

from rlcore_engines.ray import cluster, crew, ray_sampler, worker
from rlcore_engines.ray import crew as dispatch
from rlcore_engines.ray import worker as keeper

NUMBERS = itertools.count()


class Reference:
    """An answer that is computed when it is waited for, or a value."""

    def __init__(self, compute: Any = None, value: Any = None) -> None:
        self.compute, self.value, self.error = compute, value, None
        self.is_late, self.number = False, next(NUMBERS)

    def hex(self) -> str:
        return str(self.number)  # also of one that was sent elsewhere

    def settle(self) -> None:
        if self.compute is not None:
            compute, self.compute = self.compute, None
            try:
                self.value = compute()
            except Exception as error:  # noqa: BLE001  as Ray hands on what an actor raises
                self.error = error


class Method:
    def __init__(self, handle: Handle, name: str) -> None:
        self.handle, self.name = handle, name

    def options(self, **_: Any) -> Method:
        return self

    def remote(self, *args: Any) -> Reference:
        return self.handle.call(self.name, args)


class Handle:
    """An actor."""

    def __init__(self, ray: StandInRay, cls: type, options: Mapping[str, Any], args: tuple[Any, ...]) -> None:
        self.ray, self.cls, self.settings, self.args = ray, cls, options, args
        self.restarts, self.is_dead = options.get("max_restarts", 0), False
        self.actor = cls(*args)

    def __getattr__(self, name: str) -> Method:
        if name.startswith("__"):
            raise AttributeError(name)
        return Method(self, name)

    def die(self) -> Exception:
        self.ray.num_deaths += 1
        if self.restarts == 0:
            self.is_dead = True
            return ActorDiedError()
        self.restarts -= 1
        self.actor = self.cls(*self.args)
        return ActorUnavailableError("it has died", None)

    def call(self, name: str, args: tuple[Any, ...]) -> Reference:
        fault = self.ray.faults.popleft() if name == "sample" and self.ray.faults else ""
        before = self.actor

        def compute() -> Any:
            if self.is_dead:
                raise ActorDiedError
            if self.actor is not before:
                raise ActorUnavailableError("it was replaced", None)
            if fault == "dies":
                raise self.die()
            given = [
                self.ray.get(each) if isinstance(each, Reference) else pickle.loads(pickle.dumps(each)) for each in args
            ]
            try:
                found = getattr(self.actor, name)(*given)
                return asyncio.run(found) if inspect.iscoroutine(found) else found
            except Exception as error:
                raise RayTaskError("sample", "traceback", error) from error

        reference = Reference(compute)
        reference.is_late = fault == "late"
        return reference


class Actor:
    def __init__(self, ray: StandInRay, cls: type) -> None:
        self.ray, self.cls, self.settings = ray, cls, dict[str, Any]()

    def options(self, **options: Any) -> Actor:
        self.settings = options
        return self

    def remote(self, *args: Any) -> Handle:
        handle = Handle(self.ray, self.cls, self.settings, args)
        self.ray.named[self.settings["name"]] = handle
        return handle


class StandInRay:
    """Stands for the module `ray`.

    Attributes:
        faults: what happens to the next calls of `sample`, one each: "dies", "late", or "" for nothing.
        last_first: whether the last of the pending answers comes first.
        num_deaths: of actors.
        num_bytes: of arrays that were put into the store.
    """

    def __init__(self) -> None:
        self.faults: deque[str] = deque()
        self.named: dict[str, Handle] = {}
        self.num_deaths = self.num_bytes = 0
        self.is_started, self.last_first, self.clock_s = False, False, 0.0

    perf_counter = staticmethod(time.perf_counter)

    def monotonic(self) -> float:
        """Return the time, which goes on where an answer is waited for in vain."""
        return self.clock_s

    def init(self, *_: Any, **__: Any) -> None:
        self.is_started = True

    def is_initialized(self) -> bool:
        return self.is_started

    def shutdown(self) -> None:
        self.is_started = False
        self.named.clear()

    def remote(self, cls: type) -> Actor:
        return Actor(self, cls)

    def get_actor(self, name: str, _namespace: str) -> Handle:
        return self.named[name]

    def get_runtime_context(self) -> SimpleNamespace:
        return SimpleNamespace(gcs_address="a stand-in", get_node_id=lambda: "0" * 56)

    def get_gpu_ids(self) -> list[int]:
        return []

    def put(self, value: Any) -> Reference:
        arrays = value.values() if isinstance(value, dict) else ()
        self.num_bytes += sum(each.nbytes for each in arrays)
        copied = {name: each.copy() for name, each in value.items()} if isinstance(value, dict) else value
        return Reference(value=copied)

    def get(self, what: Any, timeout: float | None = None) -> Any:
        if isinstance(what, list):
            return [self.get(each) for each in what]
        what.settle()
        if what.error is not None:
            raise what.error
        return what.value

    def wait(
        self, pending: Sequence[Reference], num_returns: int = 1, timeout: float | None = None
    ) -> tuple[list[Reference], list[Reference]]:
        ordered = list(reversed(pending)) if self.last_first else list(pending)
        ready = [each for each in ordered if not each.is_late][:num_returns]
        self.clock_s += 0.0 if ready else timeout or 0.0
        for each in ready:
            each.settle()
        return ready, [each for each in pending if each not in ready]

    def kill(self, handle: Handle, *, no_restart: bool = True) -> None:
        if no_restart:
            handle.is_dead = True
        else:
            handle.die()

    def cluster_resources(self) -> dict[str, float]:
        return {"CPU": 2.0}

    available_resources = cluster_resources


def stand_in(monkeypatch: pytest.MonkeyPatch) -> StandInRay:
    """Put a stand-in in the place of Ray in the modules of the sampler."""
    found = StandInRay()
    for module in (cluster, crew, dispatch, ray_sampler, worker):
        monkeypatch.setattr(module, "ray", found)
    monkeypatch.setattr(dispatch, "time", found)
    monkeypatch.setattr(keeper, "asyncio", _SyncKeeper)
    return found


class _SyncKeeper:
    """In place of asyncio: every call of the keeper has an event loop of its own here."""

    class Condition:
        async def __aenter__(self) -> None:
            pass

        async def __aexit__(self, *_: object) -> None:
            pass

        def notify_all(self) -> None:
            pass

        async def wait_for(self, is_there: Any) -> None:
            if not is_there():
                raise GetTimeoutError("no such version")
