"""Requests to a server with the API of OpenAI: repetitions after failures, a limit at a time, and a budget.

Also in this file: replies of judges on disk: one line of JSON for each, appended at once and found again by what was
asked.
"""

from __future__ import annotations

import asyncio
import contextlib
import email.utils
import hashlib
import json
import os
import time
from collections.abc import Mapping
from pathlib import Path
from threading import Lock
from typing import Any

import attrs

from rlcore.errors import ConfigError, RewardError
from rlcore.safe_text import hide_keys, hide_logins
from rlcore_rewards.config import JudgeConfig
from rlcore_rewards.parts import load

REPEATED = frozenset({408, 409, 429})
"""Statuses of failures that may pass, besides those from 500 on."""
LONGEST_WAIT_S = 60.0


class RequestFailed(Exception):
    """A request without a reply, with the reason; the judgement is missing."""


class BudgetSpent(RequestFailed):
    """A request that was not sent, because the budget is spent."""


@attrs.define
class Spent:
    """What a process has used of its budget."""

    requests: int = 0
    tokens: int = 0


@attrs.frozen
class _Attempt:
    """An attempt that failed: why, and the seconds that the server wants to wait before the next."""

    reason: str
    wait_s: float = 0.0


class ChatRequests:
    """Sends requests from one event loop.

    Args:
        config: the options.
        key: the server's key; None: requests without one.
        spent: what is used of the budget, which requests are added to.

    Raises:
        ConfigError: the key has characters that no request can have.
        PluginError: httpx is not installed.
    """

    def __init__(self, config: JudgeConfig, key: str | None, spent: Spent) -> None:
        self.config, self.spent = config, spent
        self._httpx = load("httpx", reward="judge", extra="judge")
        key = _checked(key, config.key_env)
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        limits = self._httpx.Limits(max_connections=config.concurrency, max_keepalive_connections=config.concurrency)
        self._client = self._httpx.AsyncClient(headers=headers, timeout=config.timeout_s, limits=limits)
        self._url = f"{config.url.rstrip('/')}/chat/completions"
        self._at_once = asyncio.Semaphore(config.concurrency)

    async def ask(self, request: Mapping[str, Any]) -> str:
        """Return the text of the reply.

        Raises:
            RequestFailed: every attempt failed, or the reply is none of a chat.
            BudgetSpent: the budget is spent.
            RewardError: the server refuses the request; another attempt would be refused too.
        """
        async with self._at_once:
            attempt = 0
            while True:
                self._spend()
                answer = await self._attempt(request)
                if isinstance(answer, str):
                    return answer
                if attempt == self.config.retries:
                    raise RequestFailed(f"{answer.reason}, in {attempt + 1} attempt{'s' if attempt else ''}")
                backoff_s = min(LONGEST_WAIT_S, self.config.backoff_s * 2**attempt)
                await asyncio.sleep(max(backoff_s, min(answer.wait_s, LONGEST_WAIT_S)))
                attempt += 1

    async def close(self) -> None:
        """Close the connections."""
        await self._client.aclose()

    def _spend(self) -> None:
        config, spent = self.config, self.spent
        for name, used in (("max_requests", spent.requests), ("max_total_tokens", spent.tokens)):
            most = getattr(config, name)
            if most is not None and used >= most:
                raise BudgetSpent(f"judge.{name} = {most} is spent")
        spent.requests += 1

    async def _attempt(self, request: Mapping[str, Any]) -> str | _Attempt:
        """Return the text of the reply, or why there is none."""
        try:
            # The limit of httpx is one for each read: a server that sends a byte now and then would never reach it.
            async with asyncio.timeout(self.config.timeout_s):
                response = await self._client.post(self._url, json=request)
        except TimeoutError:
            return _Attempt(f"{self._url} did not answer within judge.timeout_s = {self.config.timeout_s:g}")
        except (self._httpx.InvalidURL, self._httpx.UnsupportedProtocol) as error:
            raise RewardError(f"judge.url = {self.config.url!r}: is no address of a server: {error}") from error
        except UnicodeEncodeError as error:
            raise RequestFailed("the question has half of a surrogate pair, which is no Unicode") from error
        except self._httpx.HTTPError as error:
            return _Attempt(f"{self._url}: {type(error).__name__}: {str(error) or 'no further reason'}")
        if response.status_code in REPEATED or response.status_code >= 500:
            wait_s = _retry_after(response.headers.get("retry-after"))
            return _Attempt(f"{self._url} answered {self._status(response)}", wait_s)
        if response.status_code != 200:
            raise RewardError(
                f"the judge at {self._url} refuses the request for the model '{self.config.model}': "
                f"{self._status(response)}; check judge.url, judge.model and the key in {self.config.key_env}"
            )
        return self._text(response)

    def _text(self, response: Any) -> str:
        """Return the text of a reply, and count its tokens.

        Raises:
            RequestFailed: it is no reply of a chat.
        """
        try:
            reply = response.json()
            self.spent.tokens += int((reply.get("usage") or {}).get("total_tokens") or 0)
            text = reply["choices"][0]["message"]["content"]
        except (ValueError, KeyError, IndexError, TypeError, AttributeError, OverflowError, RecursionError):
            raise RequestFailed(
                f"{self._url} answered with no reply of a chat: {hide_keys(response.text)[:120]!r}"
            ) from None
        return hide_keys(text) if isinstance(text, str) else ""

    def _status(self, response: Any) -> str:
        """Return the status of a response and the beginning of what it says, without the key."""
        text = hide_logins(" ".join(response.text.split()))[:200]
        return f"{response.status_code} {response.reason_phrase}{f': {text}' if text else ''}"


def _checked(key: str | None, variable: str) -> str:
    """Return a key without white space around it, such as the end of the line of a file; it appears in no error."""
    key = (key or "").strip()
    if not (key.isascii() and key.isprintable()):
        raise ConfigError(f"judge.key_env: the key in {variable} has characters that no request can have; set it again")
    return key


def _retry_after(value: str | None) -> float:
    """Return the seconds in a header Retry-After, a number or a date; 0 for none."""
    if not value:
        return 0.0
    try:
        return max(0.0, float(value))
    except ValueError:
        pass
    try:
        return max(0.0, email.utils.parsedate_to_datetime(value).timestamp() - time.time())
    except ValueError:
        return 0.0


NAME = "judge_cache.jsonl"


def key_of(request: Mapping[str, Any]) -> str:
    """Return the key of a request, which depends on everything in it."""
    return hashlib.sha256(json.dumps(request, sort_keys=True).encode()).hexdigest()


class ReplyCache:
    """The replies in a file, which several processes may append to.

    Args:
        folder: the folder of the file, created if needed.

    Raises:
        ConfigError: the folder cannot be written.
    """

    def __init__(self, folder: Path) -> None:
        self.path, self._lock = folder / NAME, Lock()
        self._replies: dict[str, str] = {}
        try:
            folder.mkdir(parents=True, exist_ok=True)
            text = self.path.read_bytes() if self.path.exists() else b""
            self._file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            if text and not text.endswith(b"\n"):  # a line that a crash cut off
                os.write(self._file, b"\n")
        except OSError as error:
            raise ConfigError(f"judge.cache: {self.path} cannot be written: {error}; name another folder") from error
        for line in text.splitlines():
            with contextlib.suppress(ValueError, KeyError, TypeError):
                row = json.loads(line)
                self._replies[row["key"]] = str(row["reply"])

    def get(self, key: str) -> str | None:
        """Return the reply to a request, or None."""
        return self._replies.get(key)

    def put(self, key: str, reply: str) -> None:
        """Keep a reply; the line is written in one piece."""
        with self._lock:
            self._replies[key] = reply
            os.write(self._file, (json.dumps({"key": key, "reply": reply}) + "\n").encode())

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)
