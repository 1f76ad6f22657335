"""Distribute prompts among servers: each goes to the least busy one, and to another one if that fails.

Every row gets one answer, the first valid one. A row whose server fails, is late or has old weights is asked again with
the same seed, so that it is sampled as if nothing had happened.
"""

from __future__ import annotations

import queue
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial

import attrs

from rlcore.errors import DataError
from rlcore.logging import get_logger
from rlcore_engines.pool import Pool, begin
from rlcore_engines.vllm.client import VLLMServer
from rlcore_engines.vllm.connection import Connections, EngineError, ServerUnavailable
from rlcore_engines.vllm.generation import PATH, Completion, Generated, read_answer

ATTEMPTS = 5
"""Most times that a row is asked for."""
PATIENCE_S = 2.0
"""How long the end of a call waits for threads whose requests it has aborted."""
log = get_logger("vllm")


@attrs.frozen(eq=False)
class Dispatch:
    """Where completions are asked for.

    Attributes:
        servers: the servers.
        version: of the weights that all of them have.
        recover: waits until a server that failed is back with these weights; called in a thread.
        concurrency: most requests at a time to one server.
        timeout_s: longest time for an answer.
        continues: whether later weights than these may have sampled the end of an answer, or all of it.
    """

    servers: Sequence[VLLMServer]
    version: str
    recover: Callable[[VLLMServer], None]
    concurrency: int
    timeout_s: float
    continues: bool = False

    def answers(self, asked: Sequence[Completion]) -> Iterator[tuple[int, Generated]]:
        """Yield the index and the answer of each request, as they arrive; each once.

        Raises:
            EngineError: no server answers, or an answer cannot be used.
            DataError: a server refuses a request.
        """
        call = _Call(self, asked)
        try:
            yield from call.answers()
        finally:
            call.end()


@attrs.frozen(eq=False)
class _Event:
    """What has become of a request, or of a server that failed (row is None).

    Attributes:
        lane: the server.
        row: the request.
        answer: its answer.
        error: why there is none.
    """

    lane: _Lane
    row: int | None
    answer: Generated | None = None
    error: Exception | None = None


class _Lane:
    """The requests to one server."""

    def __init__(self, server: VLLMServer, concurrency: int, events: queue.SimpleQueue[_Event]) -> None:
        self.server, self.running, self.works = server, 0, True
        self._pool, self._connections = Pool(concurrency), Connections(server.url, server.headers)
        self._events = events
        self.lost: Exception | None = None

    def give(self, row: int, ask: Callable[[Connections, int], Generated]) -> None:
        """Request the completion of a row in a thread."""
        self.running += 1
        self._pool.submit(partial(self._report, row, partial(ask, self._connections, row)))

    def recover(self, recover: Callable[[VLLMServer], None]) -> None:
        """Wait in a thread until the server is back."""
        self.works = False
        begin(partial(self._report, None, partial(recover, self.server)))

    def _report(self, row: int | None, call: Callable[[], Generated | None]) -> None:
        try:
            event = _Event(self, row, answer=call())
        except Exception as error:  # noqa: BLE001  raised where the events are read
            event = _Event(self, row, error=error)
        self._events.put(event)

    def end(self) -> None:
        """End the threads; the server notices that connections are closed, and gives up their requests."""
        if self.running:
            self._connections.abort()
        self._pool.close(PATIENCE_S)
        self._connections.close()


class _Call:
    """One call of `Dispatch.answers`."""

    def __init__(self, dispatch: Dispatch, asked: Sequence[Completion]) -> None:
        self._dispatch, self._asked = dispatch, asked
        self._waiting, self._attempts = deque(_groups(asked)), [0] * len(asked)
        self._events: queue.SimpleQueue[_Event] = queue.SimpleQueue()
        self._lanes = [_Lane(server, dispatch.concurrency, self._events) for server in dispatch.servers]

    def answers(self) -> Iterator[tuple[int, Generated]]:
        left = len(self._asked)
        while left:
            self._deal()
            event = self._events.get()
            if event.row is None:
                self._recovered(event)
                continue
            event.lane.running -= 1
            if event.answer is not None:
                left -= 1
                yield event.row, event.answer
            elif isinstance(event.error, ServerUnavailable):
                self._again(event.lane, event.row, event.error)
            elif event.error is not None:
                raise event.error

    def end(self) -> None:
        for lane in self._lanes:
            lane.end()

    def _deal(self) -> None:
        """Ask, as far as servers have room; the rows of one prompt go to one server, which caches its states."""
        while self._waiting:
            free = [each for each in self._lanes if each.works and each.running < self._dispatch.concurrency]
            if not free:
                return
            lane = min(free, key=lambda each: each.running)
            group = self._waiting[0]
            while group and lane.running < self._dispatch.concurrency:
                row = group.popleft()
                self._attempts[row] += 1
                lane.give(row, self._ask)
            if not group:
                self._waiting.popleft()

    def _ask(self, connections: Connections, row: int) -> Generated:
        """Return the answer to a row; called in a thread."""
        asked = self._asked[row]
        reply = connections.request("POST", PATH, asked.body(), timeout_s=self._dispatch.timeout_s)
        if reply.status >= 500 or reply.status in (408, 429):
            raise ServerUnavailable(f"{reply.where}: {reply.describe()}")
        if reply.status != 200:
            raise DataError(
                f"{reply.where}: a prompt of {len(asked.prompt)} tokens and at most {asked.limit} new ones is refused: "
                f"{reply.describe()}"
            )
        made = self._dispatch
        return read_answer(reply.json(), asked, made.version, reply.where, continues=made.continues)

    def _again(self, lane: _Lane, row: int, error: ServerUnavailable) -> None:
        if self._attempts[row] >= ATTEMPTS:
            raise EngineError(f"a prompt has been asked for {ATTEMPTS} times without an answer; the last time: {error}")
        self._waiting.appendleft(deque([row]))
        if lane.works:
            log.warning("a server failed; its prompts are asked again", server=str(lane.server), error=str(error)[:300])
            lane.recover(self._dispatch.recover)

    def _recovered(self, event: _Event) -> None:
        """Use a server again, or go on without it if there are others."""
        if event.error is None:
            event.lane.works = True
            return
        event.lane.lost = event.error
        if all(lane.lost is not None for lane in self._lanes):
            raise event.error
        log.warning("a server is lost for this call", server=str(event.lane.server), error=str(event.error)[:300])


def _groups(asked: Sequence[Completion]) -> Iterator[deque[int]]:
    """Yield the indices of consecutive requests with the same prompt, together."""
    group: deque[int] = deque()
    for row, each in enumerate(asked):
        if group and asked[group[-1]].prompt != each.prompt:
            yield group
            group = deque()
        group.append(row)
    if group:
        yield group
