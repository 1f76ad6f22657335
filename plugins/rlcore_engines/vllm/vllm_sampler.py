"""The sampler `vllm`: rollouts from vLLM servers, checked against the policy after every change of its weights.

Also in this file: distribute prompts among servers: each goes to the least busy one, and to another one if that
fails.
"""

from __future__ import annotations

import queue
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Any
from weakref import WeakSet

import attrs
import torch

from rlcore.errors import ConfigError, DataError
from rlcore.logging import get_logger
from rlcore.protocols import Policy
from rlcore.settings import SamplingConfig
from rlcore.training.evaluate import eval_samplings
from rlcore.types import Prompt, Trajectories
from rlcore_engines.pool import Pool, begin
from rlcore_engines.vllm.client import VLLMServer
from rlcore_engines.vllm.config import VLLMConfig
from rlcore_engines.vllm.connection import Connections, EngineError, ServerUnavailable
from rlcore_engines.vllm.fleet import Fleet
from rlcore_engines.vllm.generation import (
    PATH,
    Completion,
    Generated,
    changes_of,
    check_sampling,
    read_answer,
    token_limits,
)
from rlcore_engines.vllm.vllm_rows import (
    completions_of,
    cut_end,
    ends_elsewhere,
    report_parts,
    seeds_of,
    trajectories_of,
)
from rlcore_engines.vllm.weight_check import WeightCheck
from rlcore_transformers.sampling.draw import check_tokens
from rlcore_transformers.sampling.record import StopSequences

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


class VLLMSampler:
    """Samples from vLLM servers (`rlcore.protocols.Sampler`).

    A column `logprobs` has the server's log-probs where tokens are sampled from softmax(logits / temperature). They are
    those of another program, so that `exact_logprobs` is not set, and trainers compute the policy's own. With top_k,
    top_p, min_new_tokens or options on tokens the column is called `sampling_logprobs`; greedy sampling has neither.

    A server has one version of the weights: rounds that were submitted are collected before these change, except with
    the option `continue_responses`, where they go on with the new ones and the rows have a column `token_versions`.

    Args:
        config: the options.
    """

    def __init__(self, config: VLLMConfig) -> None:
        if not config.url and config.python is None:
            raise ConfigError(
                "sampler = 'vllm': set sampler.url, the address of a running server, or sampler.python, the Python of "
                "an environment with vLLM, in which the run starts a server"
            )
        self.config, self._fleet = config, Fleet(config)
        self._weights = WeightCheck(
            self._fleet, config.check_rows, lambda server, asked: dict(self._dispatch([server]).answers(asked))
        )
        self._temperature, self._has_warned = 1.0, False
        self._open = WeakSet[Future[Trajectories]]()
        """What was submitted and not collected."""

    def open(self, run: Any) -> None:
        """Prepare for a run, before its model is built.

        Raises:
            ConfigError: a server cannot sample with the run's options, or lacks an option that it needs.
        """
        check_sampling(run.config.gen, options=self.config)
        for _, sampling in eval_samplings(run.config.gen, run.config.eval.gen):
            check_sampling(sampling, "eval.gen", self.config)
        if self.config.sleep and run.config.run.asynchronous:
            raise ConfigError(
                f"sampler.sleep with run.asynchronous = {run.config.run.asynchronous}: servers sample while the policy "
                "learns; leave one of them out"
            )
        if self.config.continue_responses and not run.config.run.asynchronous:
            raise ConfigError(
                "sampler.continue_responses: no response is under way when the weights change, since run.asynchronous "
                "is 0: set it to 1, or leave the option out"
            )
        self._temperature = run.config.gen.policy_temperature
        self._weights.is_full_precision = run.ranks.mixed_precision == "no"
        self._fleet.open(run)

    @property
    def one_version(self) -> bool:
        """Whether rounds must be collected before the weights change (`AsynchronousSampler`)."""
        return not self.config.continue_responses

    @property
    def draws_from_policy(self) -> bool:
        """Whether no option of the sampler changes the distribution of the next token."""
        return not self.config.reshaping

    def check(self, policy: Policy, samplings: Sequence[SamplingConfig]) -> None:
        """Check the tokens that options name, before the first step of a run.

        Raises:
            ConfigError: the options name tokens that there are not, or leave none to sample.
        """
        check_tokens(self.config, policy, samplings)

    def on_rollout(self, run: Any) -> None:
        """Let servers sleep once all processes have sampled, if the run asks for it (`sampler.sleep`).

        No process goes on before they do: it could need the memory, or find them awake for its next prompts.
        """
        if self.config.sleep:
            run.ranks.wait()
            self._fleet.rest()
            run.ranks.wait()

    def on_evaluate(self, run: object) -> None:
        """Let servers sleep again that an evaluation woke."""
        self.on_rollout(run)

    def close(self) -> None:
        """End the server that was started; a later call starts one anew."""
        self._open.clear()
        self._fleet.close()

    def renew_weights(self, policy: Policy, prompts: Sequence[Prompt]) -> None:
        """Give the servers the policy's weights if they have changed, and check them; collective.

        Divided weights are gathered one after another, and completed one block at a time to check them.

        Raises:
            EngineError: no server answers.
            StaleWeights: a server's log-probs are not those of the policy's weights.
        """
        self._fleet.renew(policy)
        self._weights.check(policy, prompts, self._temperature)

    def __call__(
        self,
        policy: Policy,
        prompts: Sequence[Prompt],
        sampling: SamplingConfig,
        *,
        generator: torch.Generator | None = None,
        row_seeds: Sequence[int] | None = None,
        on_batch: Callable[[list[int], Trajectories], None] | None = None,
    ) -> Trajectories:
        """Sample one continuation of each prompt.

        Raises:
            EngineError: no server answers, or an answer cannot be used.
            StaleWeights: a server's log-probs are not those of the policy's weights.
        """
        asked = self._prepare(policy, prompts, sampling, seeds_of(len(prompts), row_seeds, generator))
        batch = self._sample(policy, prompts, asked, sampling, on_batch)
        self._weights.check_again()  # if a server has been started again meanwhile
        return batch

    def submit(
        self,
        policy: Policy,
        prompts: Sequence[Prompt],
        sampling: SamplingConfig,
        *,
        row_seeds: Sequence[int],
        generator: torch.Generator | None = None,
    ) -> Future[Trajectories]:
        """Give the servers the policy's weights, check them, and begin to sample (`rlcore_engines.asynchronous`).

        What was submitted before with other weights must have been collected, or goes on with these
        (`continue_responses`).

        Raises:
            EngineError: no server answers.
            StaleWeights: a server's log-probs are not those of the policy's weights.
        """
        seeds: Sequence[int | None] = seeds_of(len(prompts), row_seeds, generator)
        if self.config.continue_responses:  # vLLM on CPUs ends when it stops a request that has a seed
            seeds = [None] * len(seeds)
        asked = self._prepare(policy, prompts, sampling, seeds)
        dispatch = self._dispatch()  # to the servers that have these weights
        future = begin(partial(self._sample, policy, prompts, asked, sampling, None, dispatch))
        self._open.add(future)
        return future

    def collect(self, handle: Future[Trajectories]) -> Trajectories:
        """Wait for what was submitted and return its rows.

        Raises:
            EngineError: no server answers, or an answer cannot be used, or the rows were collected before.
            StaleWeights: a server was started again meanwhile, and its log-probs are not those of before.
        """
        if handle not in self._open:
            raise EngineError("collect: the rows of this handle were collected before; keep what collect returned")
        rows = handle.result()
        self._weights.check_again()
        self._open.discard(handle)
        return rows

    def _prepare(
        self, policy: Policy, prompts: Sequence[Prompt], sampling: SamplingConfig, seeds: Sequence[int | None]
    ) -> list[Completion]:
        """Return the requests for a round, from servers that have the policy's weights.

        In a run of several processes they have them already, since `renew_weights` is called before.
        """
        check_sampling(sampling, options=self.config)
        limits = token_limits(prompts, sampling.max_new_tokens, policy.max_length)
        self._fleet.renew(policy)
        self._fleet.check_room(
            max((len(prompt.tokens) + limit for prompt, limit in zip(prompts, limits, strict=True)), default=0)
        )
        self._weights.check(policy, prompts, sampling.policy_temperature)
        changes = changes_of(self.config, policy.tokenizer)
        return completions_of(policy, prompts, limits, seeds, sampling, self._fleet.model, changes)

    def _dispatch(self, servers: Sequence[VLLMServer] | None = None) -> Dispatch:
        fleet, config, given = self._fleet, self.config, self._fleet.servers if servers is None else servers
        return Dispatch(
            given, fleet.version, fleet.recover, config.concurrency, config.timeout_s,
            continues=config.continue_responses and servers is None,
        )  # fmt: skip

    def _sample(
        self,
        policy: Policy,
        prompts: Sequence[Prompt],
        asked: Sequence[Completion],
        sampling: SamplingConfig,
        on_batch: Callable[[list[int], Trajectories], None] | None,
        dispatch: Dispatch | None = None,
    ) -> Trajectories:
        stops = StopSequences(policy.tokenizer, sampling.stop_sequences) if sampling.stop_sequences else None
        rows: dict[int, tuple[Generated, bool]] = {}
        changes = changes_of(self.config, policy.tokenizer)

        def batch_of(indices: Sequence[int]) -> Trajectories:
            own, found = [prompts[i] for i in indices], [rows[i] for i in indices]
            return trajectories_of(policy, own, found, sampling, changes)

        def finish() -> Iterator[int]:
            for row, answer in (dispatch or self._dispatch()).answers(asked):
                rows[row] = cut_end(answer, asked[row], stops)
                if not self._has_warned and ends_elsewhere(answer, asked[row], stops):
                    self._has_warned = True
                yield row

        report_parts(finish(), batch_of, sampling.batch_size or len(asked), on_batch)
        return batch_of(range(len(asked)))
