"""Start the ranks of a run on the machines of a cluster, pass on signals, and start all again when one fails.

Also in this file: the places that the processes of a run hold on the machines of a cluster; print what several ranks
write at the same time, so that no line of one is cut by another's.
"""

from __future__ import annotations

import contextlib
import signal
import sys
import time
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import attrs
import ray
from ray.exceptions import GetTimeoutError, RayActorError, RayTaskError
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from rlcore.safe_text import write
from rlcore_engines.ray import cluster
from rlcore_engines.ray.agent import ERR, Agent, News, environments, order
from rlcore_engines.ray.cluster import RayError
from rlcore_engines.ray.launch_command import POLL_S, Launch, Presses, answers


class Lines:
    """Prints the whole lines of each rank as they arrive, and the rest when the rank ends."""

    def __init__(self) -> None:
        self._rest: dict[tuple[int, int], bytes] = {}

    def write(self, rank: int, number: int, text: bytes) -> None:
        """Print the lines that `text` ends; a carriage return, which a progress bar writes, ends one too.

        Args:
            rank: who has written it.
            number: of the standard stream.
            text: a part of what was written, in the order of time.
        """
        whole = self._rest.pop((rank, number), b"") + text
        end = max(whole.rfind(b"\n"), whole.rfind(b"\r")) + 1
        if end < len(whole):
            self._rest[rank, number] = whole[end:]
        _print(number, whole[:end])

    def end(self, rank: int) -> None:
        """Print what a rank has written after its last line."""
        for key in [key for key in self._rest if key[0] == rank]:
            _print(key[1], self._rest.pop(key))


def _print(number: int, text: bytes) -> None:
    stream = sys.stderr if number == ERR else sys.stdout
    stream.buffer.write(text)
    stream.flush()


PATIENCE_S = 10.0
"""After how long a command reports that it waits for room."""


def reserve(launch: Launch, presses: Presses) -> object:
    """Return the places that the ranks hold, once the cluster has room.

    Raises:
        RayError: it has none in time.
        KeyboardInterrupt: a signal has come meanwhile.
    """
    room = ray.cluster_resources()
    gpus = (1.0 if room.get("GPU") else 0.0) if launch.gpus is None else launch.gpus
    needs = {name: amount for name, amount in (("CPU", launch.cpus), ("GPU", gpus)) if amount}
    needs = needs or {"memory": 1.0}  # Ray refuses a place that holds nothing
    each = ", ".join(f"{name} {amount:g}" for name, amount in needs.items())
    wanted = f"{launch.processes} processes with {each} each"

    def list_free() -> str:
        free = ray.available_resources()
        return ", ".join(f"{name} {free.get(name, 0):g} of {room.get(name, 0):g}" for name in needs)

    group = placement_group([needs] * launch.processes, strategy="SPREAD" if launch.spread else "PACK")
    until, ready = time.monotonic() + launch.start_timeout_s, [group.ready()]
    try:
        try:
            answers(ready, min(PATIENCE_S, launch.start_timeout_s), presses)
        except GetTimeoutError:
            if (left := until - time.monotonic()) <= 0:
                raise
            write(f"rlcore ray: waiting for room for {wanted}; free are {list_free()}", sys.stderr)
            answers(ready, left, presses)
    except KeyboardInterrupt:
        release(group)
        raise
    except GetTimeoutError:
        listed = list_free()
        remove_placement_group(group)
        raise RayError(
            f"the cluster has no room for {wanted} within --start-timeout {launch.start_timeout_s:g} seconds; free are "
            f"{listed}: lower --processes, --cpus or --gpus, or add machines"
        ) from None
    return group


def release(group: object) -> None:
    """Give the places of the ranks back, unless the cluster has ended, as with the sweep that started it."""
    with contextlib.suppress(Exception):  # it ends just now
        if cluster.is_reachable():
            remove_placement_group(group)


INTERRUPTED = 130
LISTEN_S = 2.0
"""How long an actor waits for news of its rank before it answers."""
END_S = 15.0
"""How long the actors may take to end."""
NOTICE_S = 60.0
"""How long Ray may take to notice that a machine is lost, and to find room on another for what ran there."""
RETRY_S = 1.0
FIRST_TIME = 1 << 63


@attrs.frozen
class End:
    """How a rank ended.

    Attributes:
        code: its exit code; negative for a signal.
        message: its error.
        time_ns: when it recorded the error; 0 if something else ended it.
    """

    code: int
    message: str = ""
    time_ns: int = FIRST_TIME


def start(launch: Launch) -> int:
    """Run a command in several processes of a cluster, and return the exit code, that of the first error.

    Raises:
        RayError: the cluster cannot be reached, or has no room.
        KeyboardInterrupt: Ctrl-C or SIGTERM, before the ranks have started.
    """
    started = cluster.connect(launch.address, launch.processes * launch.cpus)
    presses, group = Presses(), None
    try:
        with presses.caught():
            group = reserve(launch, presses)
            run_id = uuid.uuid4().hex
            for attempt in range(launch.restarts + 1):
                ends = _Start(launch, group, run_id, attempt, presses).run()
                failed = {rank: end for rank, end in enumerate(ends) if end.code}
                if not failed or presses.received or attempt == launch.restarts:
                    return INTERRUPTED if presses.received.count(signal.SIGINT) > 1 else _report(failed)
                first = min(failed, key=lambda rank: failed[rank].time_ns)
                reason = (
                    failed[first].message.partition("\n")[0]
                    or f"rank {first} ended with exit code {failed[first].code}"
                )
                again = f"all start again ({attempt + 1} of {launch.restarts})"
                write(f"rlcore ray: {reason.removeprefix('rlcore: '):.300}; {again}", sys.stderr)
        raise AssertionError("a loop over at least one attempt returns")
    finally:
        if group is not None:
            release(group)
        cluster.disconnect(started=started)


class _Start:
    """One start of all ranks."""

    def __init__(self, launch: Launch, group: Any, run_id: str, attempt: int, presses: Presses) -> None:
        self.launch, self.presses, self._attempt, self._run_id = launch, presses, attempt, run_id
        self._group, self.agents = group, list[Any]()
        self.ends: dict[int, End] = {}
        self._lines = Lines()
        self._passed_on, self._is_killing = 0, False
        self._failed_at: float | None = None

    def run(self) -> list[End]:
        """Return how each rank ended."""
        try:
            self._start()
            self._follow()
        finally:
            self._end_agents()
        return [self.ends[rank] for rank in range(len(self.agents))]

    def _start(self) -> None:
        """Start the ranks, on the machines on which the actors are.

        Raises:
            RayError: an actor does not start, or its machine lacks the working folder.
            KeyboardInterrupt: a signal has come meanwhile.
        """
        try:
            places = self._place_agents()
            by_rank = order(places)
            self.agents, places = [self.agents[index] for index in by_rank], [places[index] for index in by_rank]
            variables = environments(places, run_id=self._run_id, attempt=self._attempt, restarts=self.launch.restarts)
            threads = {"OMP_NUM_THREADS": str(max(1, int(self.launch.cpus)))}
            common = {**threads, **self.launch.forwarded(), "RAY_ADDRESS": cluster.cluster_address()}
            folder = str(Path.cwd())
            starts = [
                agent.start.remote(list(self.launch.words), {**common, **own}, folder)
                for agent, own in zip(self.agents, variables, strict=True)
            ]
            answers(starts, self.launch.start_timeout_s, self.presses)
        except RayTaskError as error:
            raise RayError(f"a process cannot be started: {error.cause}") from error
        except (RayActorError, GetTimeoutError) as error:
            reason = str(error).strip().partition("\n")[0]
            raise RayError(f"a process cannot be started: its actor is lost ({reason:.300})") from error

    def _place_agents(self) -> list[Any]:
        """Start the actors, and return where they are.

        After a failure, Ray may still place them on a machine that is lost; they are then started once more.

        Raises:
            RayActorError: one cannot be started.
            GetTimeoutError: one does not start in time.
            KeyboardInterrupt: a signal has come meanwhile.
        """
        actor: Any = ray.remote(Agent)
        strategies = [PlacementGroupSchedulingStrategy(self._group, index) for index in range(self.launch.processes)]
        until = time.monotonic() + (NOTICE_S if self._attempt else 0.0)
        while True:
            self.agents = [
                actor.options(num_cpus=0, max_concurrency=4, scheduling_strategy=each).remote() for each in strategies
            ]
            try:
                asked = [each.place.remote() for each in self.agents]
                return answers(asked, self.launch.start_timeout_s, self.presses)
            except RayActorError:
                if time.monotonic() > until:
                    raise
                self._end_agents()
                time.sleep(RETRY_S)

    def _follow(self) -> None:
        """Print what the ranks write until all have ended."""
        listening = {self._listen(rank): rank for rank in range(len(self.agents))}
        while listening:
            done, _ = ray.wait(list(listening), timeout=POLL_S)
            for reference in done:
                rank = listening.pop(reference)
                end = self._take(rank, reference)
                if end is None:
                    listening[self._listen(rank)] = rank
                else:
                    self.ends[rank] = end
                    if end.code and self._failed_at is None:
                        self._failed_at = time.monotonic()
            self._pass_on()
            if self._failed_at is not None and time.monotonic() > self._failed_at + self.launch.end_timeout_s:
                self._kill()

    def _listen(self, rank: int) -> object:
        return self.agents[rank].listen.remote(LISTEN_S)

    def _take(self, rank: int, reference: Any) -> End | None:
        """Print news of a rank, and return how it ended; None if it still runs."""
        try:
            news: News = ray.get(reference)
        except RayActorError:
            return End(1, f"RayError: rank {rank} is lost: its machine, or the actor that ran it, has ended", 0)
        for number, text in news.written:
            self._lines.write(rank, number, text)
        if news.code is None:
            return None
        self._lines.end(rank)
        if news.code < 0 and not self._is_killing:
            return End(news.code, _describe(rank, -news.code), 0)
        error: Mapping[str, Any] = news.error or {}
        message, code = str(error.get("message", "")), int(error.get("code", news.code))
        return End(code, message, int(error.get("time_ns", FIRST_TIME)))

    def _pass_on(self) -> None:
        """Pass a signal on to the ranks, which finish their step, save and end; end them at a second Ctrl-C."""
        if self.presses.received.count(signal.SIGINT) > 1:
            self._kill()
        elif self.presses.received and not self._passed_on:
            self._passed_on = self.presses.received[0]
            for agent in self.agents:
                agent.signal.remote(self._passed_on)

    def _kill(self) -> None:
        if self._is_killing:
            return
        self._is_killing = True
        for agent in self.agents:
            agent.end.remote()

    def _end_agents(self) -> None:
        ended = [agent.end.remote() for agent in self.agents]
        ray.wait(ended, num_returns=len(ended), timeout=END_S)
        for agent in self.agents:
            with contextlib.suppress(Exception):  # it has ended already
                ray.kill(agent)


def _describe(rank: int, number: int) -> str:
    hint = ", as for lack of memory" if number == signal.SIGKILL else ""
    return f"rlcore: rank {rank} was ended by {signal.Signals(number).name}{hint}"


def _report(failed: Mapping[int, End]) -> int:
    """Print the first error, and return its exit code."""
    if not failed:
        return 0
    first = min(failed.values(), key=lambda end: end.time_ns)
    if first.message:
        write(first.message, sys.stderr)
    return first.code if first.code > 0 else 1
