"""The actors of a run: started once, shared by its processes, and given the policy's weights when they have changed.

Also in this file: deal the parts of a round to actors: each gets the next one when it is idle, and lost parts are
sampled again.
"""

from __future__ import annotations

import contextlib
import secrets
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast

import attrs
import ray
from ray.exceptions import GetTimeoutError, ObjectLostError, RayActorError, RayTaskError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from rlcore.errors import RLCoreError
from rlcore.logging import get_logger
from rlcore.profiling import phase
from rlcore.protocols import Policy
from rlcore_engines.ray import cluster, skeleton
from rlcore_engines.ray.cluster import RayError
from rlcore_engines.ray.config import RayConfig
from rlcore_engines.ray.worker import Keeper, SamplingActor, Weights

if TYPE_CHECKING:
    from rlcore.ranks import Ranks

T = TypeVar("T")
log = get_logger("ray")


ATTEMPTS = 4
"""Most times that a part is asked for."""


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
class SharedCall(Generic[T]):
    """Parts of a round, each sampled by the next idle actor.

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
    ask: Callable[[Any, T], object]
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

    def _lose(self, reference: object, reason: str) -> None:
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


def _result(reference: Any) -> tuple[object, Exception | None]:
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


CLOSE_S = 45.0
"""How long actors may take to end their servers."""


class Crew:
    """The actors.

    Args:
        config: the options.

    Attributes:
        workers: their handles.
        returning: those that are being replaced (`SharedCall`).
        lost: those that are not replaced any more.
        version: name of the policy's present weights.
        is_main: whether this process starts actors and sends weights; the others look both up.
    """

    def __init__(self, config: RayConfig) -> None:
        self.config, self.workers, self.version, self.is_main = config, list[Any](), "", True
        self.returning, self.lost = dict[Any, int](), set[int]()
        self._token, self._address, self._precision = secrets.token_hex(4), config.address, "no"
        self._keeper: Any = None
        self._started = False
        self._policy: weakref.ref[Any] | None = None
        self._num_policies = 0
        self._weights: Weights | None = None
        self._moving: frozenset[str] = frozenset()

    def open(self, ranks: Ranks) -> None:
        """Start the actors on process 0 of a run, and let the others find them."""
        self._precision, self.is_main = ranks.mixed_precision, ranks.is_main
        ranks.on_main(self._start)
        self._token, self._address = ranks.broadcast((self._token, ranks.on_main(cluster.cluster_address)))
        self._start()

    def _start(self) -> None:
        """Connect, and start the actors or look them up, if this has not happened yet; do not wait for them."""
        if self.workers:
            return
        config = self.config
        self._started = cluster.connect(self._address, config.num_actors * config.num_cpus) or self._started
        if not self.is_main:
            names = [self._name(each) for each in ("keeper", *range(config.num_actors))]
            self._keeper, *self.workers = [ray.get_actor(name, cluster.NAMESPACE) for name in names]
            return
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        self._keeper = ray.remote(Keeper).options(  # on this node: what it refers to is here, and lost with this node
            name=self._name("keeper"), namespace=cluster.NAMESPACE, num_cpus=0, max_concurrency=1000,
            scheduling_strategy=here,
        ).remote()  # fmt: skip
        self.workers = [self._start_worker(index) for index in range(config.num_actors)]

    def _name(self, what: object) -> str:
        return f"sampler-{self._token}-{what}"

    def _start_worker(self, index: int) -> object:
        config, actor = self.config, cast("Any", ray.remote(SamplingActor))
        place: Mapping[str, object] = {"scheduling_strategy": "SPREAD"} if config.placement == "spread" else {}
        options = actor.options(
            name=self._name(index), namespace=cluster.NAMESPACE, num_cpus=config.num_cpus, num_gpus=config.num_gpus,
            resources=dict(config.resources), max_restarts=config.restarts, **place,
        )  # fmt: skip
        threads = max(1, int(config.num_cpus))
        return options.remote(self._name("keeper"), threads, config.start_timeout_s, dict(config.engine))

    def renew(self, policy: Policy) -> str:
        """Publish the policy's present weights if they have changed, and return the name of their version.

        Raises:
            RayError: the actors do not start in time.
            ModelError: the policy cannot be sent.
        """
        is_first = not self.version
        self._start()
        is_new = self._policy is None or self._policy() is not policy
        if is_new:
            self._num_policies, self._policy = self._num_policies + 1, weakref.ref(policy)
        version = f"{self._num_policies}-{policy.version}"
        if version == self.version:
            return version
        if self.is_main:
            begun = time.perf_counter()
            with phase("weights"):
                self._publish(policy, version, is_new=is_new)
            log.debug("published weights", version=version, seconds=round(time.perf_counter() - begun, 3))
        self.version = version
        if is_first:
            self._await_workers()
        return version

    def _publish(self, policy: Policy, version: str, *, is_new: bool) -> None:
        state = skeleton.state_of(policy)
        kept = self._weights
        if is_new or kept is None:
            data = ray.put((skeleton.dump(policy), self._precision))
            self._moving = frozenset()
            groups: tuple[Any, ...] = (_put(state, state.keys()),)
        else:
            data, groups = kept.policy, self._changed(state, kept.groups)
        self._weights = Weights(version, data, groups)
        ray.get(self._keeper.publish.remote(self._weights))

    def _changed(self, state: Mapping[str, Any], groups: tuple[Any, ...]) -> tuple[Any, ...]:
        """Return the objects with present weights: those that have changed before are one object, renewed here."""
        before: dict[str, skeleton.Array] = ray.get(groups[0])
        moving = self._moving | {name for name, array in before.items() if not skeleton.equals(array, state[name])}
        rest = groups[0] if moving == self._moving else _put(state, state.keys() - moving)
        self._moving = frozenset(moving)
        return (rest, _put(state, moving)) if moving else (rest,)

    def _await_workers(self) -> None:
        """Wait until every actor has started.

        Raises:
            RayError: one has not in time, or cannot.
        """
        asked, limit = [each.ready.remote() for each in self.workers], self.config.start_timeout_s
        ready, missing = ray.wait(asked, num_returns=len(asked), timeout=limit)
        if missing:
            raise RayError(
                f"{len(ready)} of {len(asked)} actors have started in sampler.start_timeout_s = {limit:g} seconds; "
                f"each needs {self._needs()}, and the cluster has {_room(ray.cluster_resources())}, of which "
                f"{_room(ray.available_resources())} are free: lower num_actors or what each holds, or add machines"
            )
        try:
            ray.get(ready)
        except (RayActorError, GetTimeoutError) as error:
            raise RayError(f"an actor does not start: {_first_line(error)}") from error

    def _needs(self) -> str:
        config = self.config
        return _room({"CPU": config.num_cpus, "GPU": config.num_gpus, **config.resources})

    def dispatch(self, parts: Sequence[T], ask: Callable[[Any, T], object]) -> SharedCall[T]:
        """Return what deals the parts of a round to the actors."""
        return SharedCall(self.workers, parts, ask, self.config.timeout_s, self.returning, self.lost)

    def close(self) -> None:
        """End the actors, and a Ray that was started; a later call starts anew."""
        if self.is_main and ray.is_initialized():
            if self.config.engine and self.workers:
                closed = [each.close.remote() for each in self.workers]
                ray.wait(closed, num_returns=len(closed), timeout=CLOSE_S)
            for each in (*self.workers, self._keeper):
                if each is not None:
                    with contextlib.suppress(Exception):  # it has ended already
                        ray.kill(each)
        self.workers, self._keeper, self.version, self._policy, self._weights = [], None, "", None, None
        self.returning, self.lost = {}, set()
        cluster.disconnect(started=self._started)
        self._started = False


def _put(state: Mapping[str, Any], names: Any) -> Any:
    return ray.put({name: skeleton.to_array(state[name]) for name in names})


def _room(resources: Mapping[str, float]) -> str:
    """Return resources as `CPU 2, GPU 1`, without those that every machine has of itself."""
    named = {name: value for name, value in resources.items() if value and ":" not in name and "memory" not in name}
    return ", ".join(f"{name} {value:g}" for name, value in sorted(named.items())) or "none"


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0][:300]
