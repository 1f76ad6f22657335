"""The reward `judge`: the score that a model gives each output by a rubric, behind an OpenAI-compatible server.

The last number that `pattern` finds in the reply is the score s, and the reward is (s - low) / (high - low). A
judgement fails if no attempt was answered, or if the reply has no score in [low, high]: its reward is None, never 0, so
that the output adds nothing and, without another reward, is left out of the loss and counted in `reward/unscored`. A
server that refuses the request (such as 401 or 404), and more failures than `max_failed`, are errors that end the run.

Also in this file: requests to a server with the API of OpenAI: repetitions after failures, a limit at a time, and a
budget.
"""

from __future__ import annotations

import asyncio
import contextlib
import email.utils
import hashlib
import json
import os
import re
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from threading import Lock
from typing import Any
from urllib.parse import urlsplit

import attrs

from rlcore.config import path_named
from rlcore.errors import ConfigError, RewardError
from rlcore.logging import get_logger
from rlcore.protocols import RunView
from rlcore.safe_text import hide_keys, hide_logins, names_key
from rlcore_rewards.config import JudgeConfig
from rlcore_rewards.parts import NO_COLUMNS, Tally, after, load, refuse_misfit, refuse_missing, signature
from rlcore_rewards.text_rewards import compile_pattern

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

    async def ask(self, request: Mapping[str, object]) -> str:
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

    async def _attempt(self, request: Mapping[str, object]) -> str | _Attempt:
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


def key_of(request: Mapping[str, object]) -> str:
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


log = get_logger("judge")
FIELD = re.compile(r"\{(\w+)\}")
"""A placeholder of the rubric."""


class Judge:
    """A coroutine reward function that asks a model for a score of each output.

    Args:
        config: the options.

    Raises:
        ConfigError: the rubric, the model, the pattern or the range of scores cannot be used.
        PluginError: httpx is not installed.
    """

    def __init__(self, config: JudgeConfig) -> None:
        _check(config)
        load("httpx", reward="judge", extra="judge")
        self.config, self._pattern = config, compile_pattern(config.pattern, "judge.pattern")
        if self._pattern.groups != 1:
            raise ConfigError(
                f"judge.pattern = {config.pattern!r}: has {self._pattern.groups} groups; the score is one"
            )
        self._fields = [
            name for name in dict.fromkeys(FIELD.findall(config.rubric)) if name not in ("prompt", "output")
        ]
        self._run: RunView | None = None
        self._cache: ReplyCache | None = None
        self._requests: ChatRequests | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._asked: dict[str, asyncio.Task[str]] = {}
        self._tally = Tally("judge")
        self._spent, self._is_spent = Spent(), False
        self.__signature__ = signature("judge.rubric", self._fields, "prompts")

    def open(self, run: RunView) -> None:
        """Receive the run, in whose folder replies are kept."""
        self._run = run

    def close(self) -> None:
        """Close the connections and the cache, and log how many judgements failed."""
        self._tally.close()
        requests, self._requests, self._asked = self._requests, None, {}
        if requests is not None and self._loop is not None and self._loop.is_running():
            asyncio.run_coroutine_threadsafe(requests.close(), self._loop)
        if self._cache is not None:
            self._cache.close()
            self._cache = None

    async def __call__(
        self, *, outputs: Sequence[str], prompts: Sequence[str], **columns: Sequence[object]
    ) -> list[float | None]:
        """Return a number in [0, 1] for each output, and None for a judgement that failed.

        Raises:
            RewardError: the server refuses requests, or more than `max_failed` of the judgements failed.
        """
        refuse_missing([*self.__signature__.parameters.values()], columns)
        refuse_misfit(outputs, columns)
        texts = [
            self._question({"prompt": prompts[i], "output": after(output, self.config.after)}
                           | {name: columns[name][i] for name in self._fields})
            for i, output in enumerate(outputs)
        ]  # fmt: skip
        results = await asyncio.gather(*map(self._judge, texts), return_exceptions=True)
        for result in results:
            if isinstance(result, BaseException) and not isinstance(result, RequestFailed):
                raise result
        failures = [result for result in results if isinstance(result, RequestFailed)]
        self._report(failures, len(results))
        return [result if isinstance(result, float) else None for result in results]

    def _question(self, fields: Mapping[str, object]) -> str:
        return FIELD.sub(lambda found: str(fields[found[1]]), self.config.rubric)

    async def _judge(self, question: str) -> float:
        config = self.config
        system = [{"role": "system", "content": config.system}] if config.system else []
        request = {
            "model": config.model, "messages": [*system, {"role": "user", "content": question}],
            "temperature": config.temperature, "max_tokens": config.max_tokens,
        }  # fmt: skip
        return self._score(await self._reply(request))

    async def _reply(self, request: Mapping[str, object]) -> str:
        """Return the reply to a request, which is sent once even if several outputs are the same."""
        self._opened()
        key = key_of({"url": self.config.url, **request})
        if self._cache is not None and (known := self._cache.get(key)) is not None:
            return known
        if key not in self._asked:
            self._asked[key] = asyncio.ensure_future(self._send(key, request))
        return await asyncio.shield(self._asked[key])

    async def _send(self, key: str, request: Mapping[str, object]) -> str:
        assert self._requests is not None  # noqa: S101  since `_opened`
        try:
            reply = await self._requests.ask(request)
            if self._cache is not None:
                self._cache.put(key, reply)
                if self._run is not None and self.config.cache is None:
                    self._run.keep_folder()
            return reply
        finally:
            self._asked.pop(key, None)

    def _opened(self) -> None:
        """Open the connections of this event loop, and the cache, if they are not open."""
        if self._requests is None or self._loop is not asyncio.get_running_loop():
            self._loop, self._asked = asyncio.get_running_loop(), {}
            self._requests = ChatRequests(self.config, os.environ.get(self.config.key_env) or None, self._spent)
        if self._cache is None and (folder := self._folder) is not None:
            self._cache = ReplyCache(folder)

    @property
    def _folder(self) -> Path | None:
        if self.config.cache is not None:
            return path_named(self.config.cache)
        return None if self._run is None else self._run.dir

    def _score(self, reply: str) -> float:
        """Return the reward of a reply.

        Raises:
            RequestFailed: it has no score in the range.
        """
        low, high = self.config.low, self.config.high
        try:
            found = self._pattern.findall(reply, timeout=1.0)
            score = float(found[-1])
        except (TimeoutError, ValueError, IndexError):
            raise RequestFailed(f"judge.pattern finds no score in the reply {reply[-80:]!r}") from None
        if not low <= score <= high:
            raise RequestFailed(f"the score {score:g} lies outside [judge.low, judge.high] = [{low:g}, {high:g}]")
        return (score - low) / (high - low)

    def _report(self, failures: Sequence[RequestFailed], num: int) -> None:
        """Count failures, end the run at the end of the budget, and raise if too many of a call failed."""
        spent = next((each for each in failures if isinstance(each, BudgetSpent)), None)
        if spent is not None and not self._is_spent:
            self._is_spent = True
            log.warning("further outputs are not judged, and the run ends after this step", because=str(spent))
            if self._run is not None:
                self._run.request_stop(str(spent))
        reasons = Counter(str(each) for each in failures)
        reason = reasons.most_common(1)[0][0] if reasons else ""
        counts = {f"judgements failed and are missing, such as: {reason}": len(failures)} if failures else {}
        self._tally.add(num, counts)
        if spent is None and len(failures) > self.config.max_failed * num:
            raise RewardError(
                f"{len(failures)} of {num} judgements failed, more than judge.max_failed = {self.config.max_failed:g} "
                f"allows: {reason}"
            )


def _check(config: JudgeConfig) -> None:
    if not config.model:
        raise ConfigError("judge.model is empty: name the model that judges, as the server calls it")
    if not names_key(config.key_env):
        raise ConfigError(
            "judge.key_env: is no name of an environment variable; set it to the name, such as OPENAI_API_KEY, and the "
            "variable to the key"
        )
    if "{output}" not in config.rubric:
        raise ConfigError(
            f"judge.rubric = {config.rubric[:80]!r}: must contain {{output}}, where the text to judge stands"
        )
    if config.low >= config.high:
        raise ConfigError(f"judge.low = {config.low:g}: must be below judge.high = {config.high:g}")
    if not config.url.startswith(("http://", "https://")):
        raise ConfigError(f"judge.url = {config.url!r}: must begin with http:// or https://")
    try:
        parts = urlsplit(config.url)
        parts.port  # noqa: B018  which is read here
    except ValueError as error:
        raise ConfigError(f"judge.url = {config.url!r}: is no address of a server: {error}") from error
    if "@" in parts.netloc:
        raise ConfigError(
            f"judge.url for {parts.hostname} holds a user name or a password, which files and messages would show: "
            "leave them out, and put the key in the environment variable that judge.key_env names"
        )
    if bad := [name for name in FIELD.findall(config.rubric) if name in NO_COLUMNS]:
        raise ConfigError(
            f"judge.rubric: {{{bad[0]}}} is no placeholder: use {{prompt}}, {{output}} or a column's name"
        )
