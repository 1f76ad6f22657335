"""Deal the parts of a round to actors: each gets the next one when it is idle, and lost parts are sampled again.

Every part gets one answer, the first. The seeds of its rows are their own, so that a part which another actor samples
again has the same tokens.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Generic, TypeVar

import attrs
import ray
from ray.exceptions import ObjectLostError, RayActorError, RayTaskError

from rlcore.errors import RLCoreError
from rlcore.logging import get_logger
from rlcore_ray.errors import RayError

T = TypeVar("T")
ATTEMPTS = 4
"""Most times that a part is asked for."""
log = get_logger("ray")


@attrs.frozen(eq=False)
class _Asked:
    """A part that an actor samples.

    Attributes:
        part: its index.
        worker: index of the actor.
        until: time after which the actor is replaced.
    """

    part: int
    worker: int
    until: float


@attrs.define(eq=False)
class Round(Generic[T]):
    """One round.

    Attributes:
        workers: the actors.
        parts: what to ask for.
        ask: calls an actor for a part and returns the reference of its answer.
        timeout_s: longest time for an answer, and for an actor to come back.
        returning: the actors that are being replaced, by the reference of the call that ends when they are back; also
            those of earlier rounds.
        lost: the actors that are not replaced any more.
    """

    workers: Sequence[Any]
    parts: Sequence[T]
    ask: Callable[[Any, T], Any]
    timeout_s: float
    returning: dict[Any, int] = attrs.field(factory=dict)
    lost: set[int] = attrs.field(factory=set)
    _waiting: deque[int] = attrs.field(init=False)
    _tried: list[int] = attrs.field(init=False)
    _idle: deque[int] = attrs.field(init=False)
    _running: dict[Any, _Asked] = attrs.field(factory=dict, init=False)

    def answers(self) -> Iterator[tuple[T, Any]]:
        """Yield each part with its answer, once, as they arrive.

        Raises:
            RayError: all actors are lost, or a part has failed `ATTEMPTS` times.
            RLCoreError: an actor raised it.
        """
        self._waiting, self._tried = deque(range(len(self.parts))), [0] * len(self.parts)
        away = self.lost | set(self.returning.values())
        self._idle = deque(index for index in range(len(self.workers)) if index not in away)
        while self._waiting or self._running:
            self._deal()
            until = min([each.until for each in self._running.values()], default=time.monotonic() + self.timeout_s)
            pending = [*self._running, *self.returning]
            done, _ = ray.wait(pending, timeout=max(0.0, until - time.monotonic()))
            if not done:
                self._replace_late()
            for reference in done:
                answer, failure = _result(reference)
                if reference in self.returning:
                    worker = self.returning.pop(reference)
                    (self._idle.append if failure is None else self.lost.add)(worker)
                elif failure is None:
                    asked = self._running.pop(reference)
                    self._idle.append(asked.worker)
                    yield self.parts[asked.part], answer
                else:
                    self._lose(reference, str(failure).strip().partition("\n")[0][:200])

    def _deal(self) -> None:
        while self._waiting and self._idle:
            part, worker = self._waiting.popleft(), self._idle.popleft()
            self._tried[part] += 1
            reference = self.ask(self.workers[worker], self.parts[part])
            self._running[reference] = _Asked(part, worker, time.monotonic() + self.timeout_s)
        if not self._running and not self.returning:
            raise RayError(f"all {len(self.workers)} actors have died more often than sampler.restarts allows")

    def _lose(self, reference: Any, reason: str) -> None:
        """Let a part be sampled again, and its actor be used again once Ray has replaced it."""
        asked = self._running.pop(reference)
        log.warning("an actor is lost; its prompts are sampled again", actor=asked.worker, reason=reason)
        if self._tried[asked.part] == ATTEMPTS:
            raise RayError(f"prompts of a round were lost with {ATTEMPTS} actors, the last time because: {reason}")
        self._waiting.appendleft(asked.part)
        probe = self.workers[asked.worker].ready.options(max_task_retries=-1).remote()
        self.returning[probe] = asked.worker

    def _replace_late(self) -> None:
        """End the actors that are late, which Ray then starts again."""
        if not self._running:
            raise RayError(
                f"no actor has come back within sampler.timeout_s = {self.timeout_s:g} seconds: the cluster has no "
                "room for one any more, or the machine is gone"
            )
        for reference in [key for key, each in self._running.items() if time.monotonic() >= each.until]:
            ray.kill(self.workers[self._running[reference].worker], no_restart=False)
            self._lose(reference, f"no answer in sampler.timeout_s = {self.timeout_s:g} seconds")


def _result(reference: Any) -> tuple[Any, Exception | None]:
    """Return an answer, or why an actor is lost.

    Raises:
        RLCoreError: the actor raised it, or another error.
    """
    try:
        return ray.get(reference), None
    except RayTaskError as error:
        cause = getattr(error, "cause", None)
        if isinstance(cause, RLCoreError):
            raise cause from None
        raise RayError(f"an actor raised {type(cause).__name__}: {cause}") from error
    except (RayActorError, ObjectLostError) as error:
        return None, error
