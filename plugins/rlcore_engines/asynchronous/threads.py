"""Make any sampler asynchronous: a thread calls it with a copy of the policy."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import Any
from weakref import WeakSet

import torch

from rlcore.errors import ConfigError, RLCoreError
from rlcore.protocols import Policy
from rlcore.settings import SamplingConfig
from rlcore.types import Prompt, Trajectories

PATIENCE_S = 1.0
"""How long the end of a run waits for a call of the sampler, which cannot be interrupted."""


class ThreadedSampler:
    """Calls a sampler in a thread (`rlcore_engines.asynchronous.AsynchronousSampler`), one call after another.

    Each submission has a copy of the weights of its own, of those that train; the others are shared.

    Args:
        sampler: a sampler that need not allow two calls at once.
    """

    def __init__(self, sampler: Callable[..., Trajectories]) -> None:
        self._sampler = sampler
        self._calling = threading.Lock()
        self._changed = threading.Condition()
        self._open = WeakSet[Future[Trajectories]]()
        self._waiting: deque[tuple[Future[Trajectories], Callable[[], Trajectories]]] = deque()
        self._thread: threading.Thread | None = None

    def __call__(self, *given: Any, **options: Any) -> Trajectories:
        """Call the sampler on this thread."""
        with self._calling:
            return self._sampler(*given, **options)

    def submit(
        self, policy: Policy, prompts: Sequence[Prompt], sampling: SamplingConfig, **options: Any
    ) -> Future[Trajectories]:
        """Copy the weights, and call the sampler with them once the calls before have ended.

        Raises:
            ConfigError: the policy cannot be copied.
        """
        copied = copy_of(policy)

        def call() -> Trajectories:
            with torch.no_grad():
                return self(copied, prompts, sampling, **options)

        future = Future[Trajectories]()
        with self._changed:
            self._waiting.append((future, call))
            self._open.add(future)
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name="rlcore-engines", daemon=True)
                self._thread.start()
            self._changed.notify()
        return future

    def collect(self, handle: Future[Trajectories]) -> Trajectories:
        """Wait for the call, and return its rows or raise its error.

        Raises:
            RLCoreError: they were collected before.
        """
        if handle not in self._open:
            raise RLCoreError("collect: the rows of this handle were collected before; keep what collect returned")
        rows = handle.result()
        self._open.discard(handle)
        return rows

    def close(self) -> None:
        """End the thread; calls that have not begun are left out."""
        with self._changed:
            thread, self._thread = self._thread, None
            self._waiting.clear()
            self._open.clear()
            self._changed.notify()
        if thread is not None:
            thread.join(PATIENCE_S)

    def _work(self) -> None:
        own = threading.current_thread()
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._waiting or self._thread is not own)
                if self._thread is not own:
                    return
                future, call = self._waiting.popleft()
            try:
                future.set_result(call())
            except BaseException as error:  # noqa: BLE001  raised again where the rows are collected
                future.set_exception(error)
            del future, call  # and with them the copy of the weights


def copy_of(policy: Policy) -> Policy:
    """Return a policy with the present weights, which later changes do not reach.

    Raises:
        ConfigError: the policy has no method `sampling_copy`.
    """
    copied = getattr(policy, "sampling_copy", None)
    if copied is None:
        raise ConfigError(
            f"run.asynchronous: the sampler has no methods submit and collect, and {type(policy).__name__} has no "
            "method sampling_copy, so that nothing can sample while it learns: leave run.asynchronous at 0, or choose "
            "such a sampler or an architecture of rlcore-transformers"
        )
    result: Policy = copied()
    return result
