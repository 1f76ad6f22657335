"""The sampler `openai`: completions from a server with the API of OpenAI, whose model is not the policy that learns.

Also in this file: a server with the API of OpenAI over HTTP: requests at a time, and repetitions after failures.
"""

from __future__ import annotations

import contextlib
import email.utils
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future, as_completed
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import torch

from rlcore.config import evolve
from rlcore.errors import ConfigError, DataError, RLCoreError
from rlcore.logging import get_logger
from rlcore.plugins.registry import registries
from rlcore.protocols import Policy, TrainerTraits
from rlcore.safe_text import hide_logins
from rlcore.settings import SamplingConfig
from rlcore.training.evaluate import eval_samplings
from rlcore.types import Prompt, Trajectories, to_device
from rlcore_engines.pool import Pool
from rlcore_engines.vllm.config import OpenAIConfig
from rlcore_engines.vllm.connection import Connections, EngineError, Reply, ServerUnavailable
from rlcore_engines.vllm.generation import COMPLETIONS_PATH, Text, TextRequest, check_options, read_text, token_limits
from rlcore_engines.vllm.vllm_rows import TextRows, prompt_texts, report_parts, seeds_of, stack_rows
from rlcore_transformers.data.tokens import decode, encode

if TYPE_CHECKING:
    from rlcore.training import Run

REPEATED = frozenset({408, 409, 429})
"""Statuses of failures that may pass, besides those from 500 on."""
LONGEST_WAIT_S = 60.0
PATIENCE_S = 10.0
"""How long the end of a call waits for each thread whose request it has aborted."""


class TextServer:
    """A server.

    Args:
        config: the options.
        section: where the user sets them, for messages.

    Raises:
        ConfigError: the environment variable with the key is not set, or its value is no key.
    """

    def __init__(self, config: OpenAIConfig, *, section: str = "sampler") -> None:
        self.config, self.section, self.url = config, section, config.url.rstrip("/")
        key = _read_key(config.key_env, section)
        self._headers = {} if key is None else {"Authorization": f"Bearer {key}"}

    def __str__(self) -> str:
        return self.url

    def answers(self, bodies: Sequence[Mapping[str, object]]) -> Iterator[tuple[int, Any]]:
        """Yield the index and the decoded answer of each request, as they arrive; each once.

        Raises:
            EngineError: a request got no answer, or one that is no JSON.
            ConfigError: the server refuses the key, or does not know the model.
            DataError: the server refuses a request.
        """
        if not bodies:
            return
        connections, over = Connections(self.url, self._headers), threading.Event()
        pool, rows = Pool(self.config.concurrency), dict[Future[Any], int]()

        def answer(body: Mapping[str, object]) -> Any:
            return self._read(self._ask(connections, body, over))

        try:
            rows |= {pool.submit(partial(answer, body)): row for row, body in enumerate(bodies)}
            for future in as_completed(rows):
                yield rows[future], future.result()
        finally:
            over.set()
            if not all(future.done() for future in rows):
                connections.abort()
            pool.close(PATIENCE_S)
            connections.close()

    def try_once(self, body: Mapping[str, object]) -> tuple[object, str]:
        """Return the decoded answer to a request, or None and the reason if its content is refused (status 400 or 422).

        Raises:
            EngineError, ConfigError, DataError: as `answers`.
        """
        connections = Connections(self.url, self._headers)
        try:
            reply = self._ask(connections, body, threading.Event())
        finally:
            connections.close()
        return (None, hide_logins(reply.describe())) if reply.status in (400, 422) else (self._read(reply), "")

    def _ask(self, connections: Connections, body: Mapping[str, object], over: threading.Event) -> Reply:
        """Return the answer, after as many repetitions as it takes.

        Raises:
            EngineError: the last repetition failed too, or `over` is set.
        """
        config, reason = self.config, ""
        for attempt in range(config.retries + 1):
            wait_s = 0.0
            try:
                reply = connections.request("POST", COMPLETIONS_PATH, body, timeout_s=config.timeout_s)
            except ServerUnavailable as error:
                reason = str(error)
            else:
                if reply.status not in REPEATED and reply.status < 500:
                    return reply
                reason, wait_s = hide_logins(reply.describe()), retry_after(reply.retry_after)
            if attempt < config.retries:
                backoff_s = min(LONGEST_WAIT_S, config.backoff_s * 2.0**attempt)
                if over.wait(max(backoff_s, min(LONGEST_WAIT_S, wait_s))):
                    break
        raise EngineError(
            f"{self.url}: a completion was asked for {config.retries + 1} times without an answer; the last time: "
            f"{reason}"
        )

    def _read(self, reply: Reply) -> Any:
        if reply.status == 200:
            return reply.json()
        raise self._refusal(reply)

    def _refusal(self, reply: Reply) -> RLCoreError:
        """Return the error for an answer that no repetition changes."""
        seen, config, section = hide_logins(reply.describe()), self.config, self.section
        if reply.status in (401, 403):
            key = f"{section}.key_env: no key is sent" if config.key_env is None else f"the key in {config.key_env}"
            return ConfigError(
                f"{self.url}: {seen}; {key}: set {section}.key_env to the variable with the server's key"
            )
        if reply.status == 404 or 300 <= reply.status < 400:
            return ConfigError(
                f"{self.url}{COMPLETIONS_PATH}: {seen}; check {section}.url, which must end where "
                f"/completions follows, often with /v1, and {section}.model = '{config.model}'"
            )
        return DataError(f"{self.url}: a request is refused: {seen}")


def _read_key(name: str | None, section: str) -> str | None:
    if name is None:
        return None
    key = os.environ.get(name, "").strip()
    if not key or not key.isascii() or not key.isprintable():
        state = "has a value that is no key" if key else "is not set"
        raise ConfigError(
            f"{section}.key_env = '{name}': this environment variable {state}; set it to the server's key"
        )
    return key


def retry_after(value: str) -> float:
    """Return the seconds in a header Retry-After, a number or a date; 0 for none."""
    with contextlib.suppress(ValueError):
        return max(0.0, float(value))
    with contextlib.suppress(ValueError):
        return max(0.0, email.utils.parsedate_to_datetime(value).timestamp() - time.time())
    return 0.0


PROBE = "the quick brown fox jumps over the lazy dog"
"""Text whose token ids a server has to echo as this text before it is sent token ids."""
OF_SAMPLER = ("min_p", "repetition_penalty")
"""Options of the sampler that requests state, if `extra` allows these fields."""
log = get_logger("openai")


class OpenAISampler:
    """Samples from any server with `/v1/completions` (`rlcore.protocols.Sampler`).

    It does not follow the weights of the policy, and returns no log-probs. Trainers whose rounds are rollouts are
    refused, unless they declare `off_policy`.

    Completions are text, which the policy's tokenizer tokenises again: their tokens need not be those that were
    sampled, and a row may be cut that has more of them than its limit. A completion that the server ended has what
    ended it appended: the stop sequence or the EOS token that the server states. If it states nothing, that is the
    first stop sequence, or, if there is none, the policy's first EOS token.

    Args:
        config: the options.

    Raises:
        ConfigError: no address, or no model, is set.
    """

    draws_from_policy = False

    def __init__(self, config: OpenAIConfig) -> None:
        for name in ("url", "model"):
            if not getattr(config, name):
                raise ConfigError(f"sampler = 'openai': set sampler.{name}; sampler.url and sampler.model are required")
        self.config = config
        self._sends_tokens: bool | None = None if config.prompts == "auto" else config.prompts == "tokens"
        self._logged = set[str]()

    @cached_property
    def _server(self) -> TextServer:
        return TextServer(self.config)

    def open(self, run: Run) -> None:
        """Prepare for a run, before its model is built.

        Raises:
            ConfigError: the trainer needs samples of the policy, or the server cannot sample with the run's options.
            EngineError: the server does not answer, or its answer is none of completions.
        """
        _check_trainer(run.config.trainer["name"])
        samplings = [("gen", run.config.gen)]
        samplings += [("eval.gen", each) for _, each in eval_samplings(run.config.gen, run.config.eval.gen)]
        for where, sampling in samplings:
            check_options(sampling, self.config.extra, where)
        self._warn_of_model()
        for sampling, where in {sampling: where for where, sampling in reversed(samplings)}.items():
            self._try(sampling, where)

    def renew_weights(self, policy: Policy, prompts: Sequence[Prompt]) -> None:
        """Read no weights, because the server has its own."""

    def _try(self, sampling: SamplingConfig, where: str) -> None:
        """Request one token with these options, so that a refusal of the server ends the run before its first step."""
        sends_tokens, seed = self.config.prompts == "tokens", 0 if sampling.temperature else None
        asked = TextRequest([0] if sends_tokens else "a", 1, seed, sampling, sampling.eos_token_ids or (0,))
        answer, refusal = self._server.try_once(self._body(asked))
        if answer is None:
            what = f"with the options of {where}" + (" and token ids as its prompt" if sends_tokens else "")
            raise ConfigError(
                f"{self._server}: refuses a request {what}: {refusal}; change these options"
                + (", or set sampler.prompts to text" if sends_tokens else "")
                + (f", or remove what the server does not accept from sampler.extra = {list(self.config.extra)}"
                   if self.config.extra else "")
            )  # fmt: skip
        self._read(answer, 1)

    def _body(self, asked: TextRequest) -> dict[str, object]:
        of_sampler = {name: getattr(self.config, name) for name in OF_SAMPLER if name in self.config.extra}
        return asked.body(self.config.model, self.config.extra) | of_sampler

    def _read(self, answer: object, limit: int) -> Text:
        return read_text(answer, limit, str(self._server), has_tokens="return_token_ids" in self.config.extra)

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
            EngineError: the server does not answer, or an answer cannot be used.
            ConfigError: the server cannot sample with these options, or refuses the key or the model.
            DataError: the server refuses a prompt.
        """
        check_options(sampling, self.config.extra)
        seeds = seeds_of(len(prompts), row_seeds, generator)
        self._warn_of_model()
        asked = self._requests(policy, prompts, seeds, sampling)
        bodies = [self._body(each) for each in asked]
        make = TextRows(policy.tokenizer, sampling, str(self._server), self._warn_once)
        rows: dict[int, tuple[Sequence[int], bool]] = {}

        def batch_of(indices: Sequence[int]) -> Trajectories:
            chosen, own = [rows[i] for i in indices], [prompts[i] for i in indices]
            batch = stack_rows(policy, own, [row for row, _ in chosen], [ended for _, ended in chosen])
            return batch.each(lambda array: to_device(array, policy.device))

        def finish() -> Iterator[int]:
            for row, answer in self._server.answers(bodies):
                rows[row] = make(prompts[row], self._read(answer, asked[row].limit), asked[row])
                yield row

        report_parts(finish(), batch_of, sampling.batch_size or len(asked), on_batch)
        return batch_of(range(len(asked)))

    def _requests(
        self, policy: Policy, prompts: Sequence[Prompt], seeds: Sequence[int], sampling: SamplingConfig
    ) -> list[TextRequest]:
        limits = token_limits(prompts, sampling.max_new_tokens, policy.max_length)
        eos = policy.eos_token_ids if sampling.eos_token_ids is None else sampling.eos_token_ids
        given: Sequence[str | Sequence[int]] = [prompt.tokens for prompt in prompts]
        if prompts and not self._takes_tokens(policy):
            given = prompt_texts(policy.tokenizer, [prompt.tokens for prompt in prompts])
        return [
            TextRequest(prompt, limit, int(seed) if sampling.temperature else None, sampling, tuple(eos))
            for prompt, limit, seed in zip(given, limits, seeds, strict=True)
        ]

    def _takes_tokens(self, policy: Policy) -> bool:
        """Return whether prompts are sent as token ids; asks the server once if the options leave it open."""
        if self._sends_tokens is None:
            self._sends_tokens = self._echoes_tokens(policy.tokenizer)
            log.info("prompts are sent", form="token ids" if self._sends_tokens else "text", server=str(self._server))
        return self._sends_tokens

    def _echoes_tokens(self, tokenizer: Any) -> bool:
        try:
            (ids,) = encode(tokenizer, [PROBE])
        except DataError:
            return False
        (expected,) = decode(tokenizer, [ids], skip_special_tokens=False)
        asked = TextRequest(ids, 1, None, evolve(SamplingConfig(), temperature=0.0))
        answer, _ = self._server.try_once({**asked.body(self.config.model), "echo": True})
        if answer is None:
            return False
        text = read_text(answer, len(PROBE) + 1, str(self._server)).text
        return len(ids) > 1 and text.strip().startswith(expected.strip())

    def _warn_of_model(self) -> None:
        self._warn_once(
            "completions are those of the server's model: they do not follow the policy's weights, in evaluations "
            "neither", model=self.config.model, server=self.config.url,
        )  # fmt: skip

    def _warn_once(self, event: str, **fields: object) -> None:
        if event not in self._logged:
            self._logged.add(event)
            log.warning(event, **fields)


def _check_trainer(name: str) -> None:
    """Refuse a trainer whose rounds are rollouts, unless it learns from samples of other distributions.

    Raises:
        ConfigError: it is such a trainer.
    """
    trainer: Any = registries().trainers.get(name).target()
    if "prompts" in trainer.needs and not TrainerTraits(trainer).off_policy:
        raise ConfigError(
            f"sampler = 'openai': trainer '{name}' learns from samples of the policy, and the server's model is not "
            "the policy: ratios and advantages of its samples would be wrong; use sampler: default or vllm, or a "
            "trainer that declares off_policy, such as rft"
        )
