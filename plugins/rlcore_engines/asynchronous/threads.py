"""Make any sampler asynchronous: a thread calls it with a copy of the policy."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from weakref import WeakSet

import torch

from rlcore.errors import ConfigError, RLCoreError
from rlcore.protocols import Policy, PolicyTraits
from rlcore.settings import SamplingConfig
from rlcore.types import Prompt, Trajectories
from rlcore_engines.pool import Pool

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
        self._pool, self._open = Pool(), WeakSet[Future[Trajectories]]()

    def __call__(self, *given: object, **options: object) -> Trajectories:
        """Call the sampler on this thread."""
        with self._calling:
            return self._sampler(*given, **options)

    def submit(
        self, policy: Policy, prompts: Sequence[Prompt], sampling: SamplingConfig, **options: object
    ) -> Future[Trajectories]:
        """Copy the weights, and call the sampler with them once the calls before have ended.

        Raises:
            ConfigError: the policy cannot be copied.
        """
        copied = copy_of(policy)

        def call() -> Trajectories:
            with torch.no_grad():
                return self(copied, prompts, sampling, **options)

        future = self._pool.submit(call)
        self._open.add(future)
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
        self._open.clear()
        self._pool.close(PATIENCE_S)


def copy_of(policy: Policy) -> Policy:
    """Return a policy with the present weights, which later changes do not reach.

    Raises:
        ConfigError: the policy has no method `sampling_copy`.
    """
    copied = PolicyTraits(policy).sampling_copy
    if copied is None:
        raise ConfigError(
            f"run.asynchronous: the sampler has no methods submit and collect, and {type(policy).__name__} has no "
            "method sampling_copy, so that nothing can sample while it learns: leave run.asynchronous at 0, or choose "
            "such a sampler or an architecture of rlcore-transformers"
        )
    return copied()
