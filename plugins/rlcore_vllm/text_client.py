"""A server with the API of OpenAI over HTTP: requests at a time, and repetitions after failures."""

from __future__ import annotations

import contextlib
import email.utils
import os
import queue
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from typing import Any

from rlcore.errors import ConfigError, DataError, RLCoreError
from rlcore_vllm.completions import PATH
from rlcore_vllm.connection import Connection, Reply
from rlcore_vllm.errors import EngineError, ServerUnavailable
from rlcore_vllm.openai_config import OpenAIConfig

REPEATED = frozenset({408, 409, 429})
"""Statuses of failures that may pass, besides those from 500 on."""
LONGEST_WAIT_S = 60.0
HIDDEN = "(the key)"


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
        self._key = _read_key(config.key_env, section)
        self._headers = {} if self._key is None else {"Authorization": f"Bearer {self._key}"}

    def __str__(self) -> str:
        return self.url

    def answers(self, bodies: Sequence[Mapping[str, Any]]) -> Iterator[tuple[int, Any]]:
        """Yield the index and the decoded answer of each request, as they arrive; each once.

        Raises:
            EngineError: a request got no answer, or one that is no JSON.
            ConfigError: the server refuses the key, or does not know the model.
            DataError: the server refuses a request.
        """
        if not bodies:
            return
        count, over = min(self.config.concurrency, len(bodies)), threading.Event()
        connections = [Connection(self.url, self._headers) for _ in range(count)]
        free: queue.SimpleQueue[Connection] = queue.SimpleQueue()
        for connection in connections:
            free.put(connection)
        pool = ThreadPoolExecutor(count, thread_name_prefix="rlcore-openai")
        rows: dict[Future[Any], int] = {}
        try:
            rows |= {pool.submit(self._work, free, body, over): row for row, body in enumerate(bodies)}
            for future in as_completed(rows):
                yield rows[future], future.result()
        finally:
            over.set()
            if not all(future.done() for future in rows):
                for connection in connections:
                    connection.abort()
            pool.shutdown(cancel_futures=True)
            for connection in connections:
                connection.close()

    def try_once(self, body: Mapping[str, Any]) -> tuple[Any, str]:
        """Return the decoded answer to a request, or None and the reason if its content is refused (status 400 or 422).

        Raises:
            EngineError, ConfigError, DataError: as `answers`.
        """
        connection = Connection(self.url, self._headers)
        try:
            reply = self._ask(connection, body, threading.Event())
        finally:
            connection.close()
        return (None, self._hide(reply.describe())) if reply.status in (400, 422) else (self._read(reply), "")

    def _work(self, free: queue.SimpleQueue[Connection], body: Mapping[str, Any], over: threading.Event) -> Any:
        connection = free.get()
        try:
            return self._read(self._ask(connection, body, over))
        finally:
            free.put(connection)

    def _ask(self, connection: Connection, body: Mapping[str, Any], over: threading.Event) -> Reply:
        """Return the answer, after as many repetitions as it takes.

        Raises:
            EngineError: the last repetition failed too, or `over` is set.
        """
        config, reason = self.config, ""
        for attempt in range(config.retries + 1):
            wait_s = 0.0
            try:
                reply = connection.request("POST", PATH, body, timeout_s=config.timeout_s)
            except ServerUnavailable as error:
                reason = str(error)
            else:
                if reply.status not in REPEATED and reply.status < 500:
                    return reply
                reason, wait_s = self._hide(reply.describe()), retry_after(reply.retry_after)
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
            try:
                return reply.json()
            except EngineError as error:
                raise EngineError(self._hide(str(error))) from None
        raise self._refusal(reply)

    def _refusal(self, reply: Reply) -> RLCoreError:
        """Return the error for an answer that no repetition changes."""
        seen, config, section = self._hide(reply.describe()), self.config, self.section
        if reply.status in (401, 403):
            key = f"{section}.key_env: no key is sent" if config.key_env is None else f"the key in {config.key_env}"
            return ConfigError(
                f"{self.url}: {seen}; {key}: set {section}.key_env to the variable with the server's key"
            )
        if reply.status == 404 or 300 <= reply.status < 400:
            return ConfigError(
                f"{self.url}{PATH}: {seen}; check {section}.url, which must end where /completions follows, often "
                f"with /v1, and {section}.model = '{config.model}'"
            )
        return DataError(f"{self.url}: a request is refused: {seen}")

    def _hide(self, text: str) -> str:
        """Return a text of the server's without the key, which it may repeat."""
        return text if self._key is None else text.replace(self._key, HIDDEN)


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
