"""One HTTP connection to a server, which another thread can abort."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

import attrs

from rlcore_vllm.errors import EngineError, ServerUnavailable

CONNECT_S = 10.0


@attrs.frozen
class Reply:
    """An answer.

    Attributes:
        status: its status code.
        text: its body.
        where: the server, for errors.
    """

    status: int
    text: str
    where: str

    def json(self) -> Any:
        """Return the body.

        Raises:
            EngineError: it is no JSON.
        """
        try:
            return json.loads(self.text)
        except ValueError as error:
            raise EngineError(f"{self.where}: the answer is no JSON: {self.text[:200]!r}") from error

    def describe(self) -> str:
        """Return the status, and the message of an error if there is one."""
        message: Any = self.text
        with contextlib.suppress(ValueError):
            message = json.loads(self.text)
            for name in ("error", "message", "detail"):
                message = message.get(name, message) if isinstance(message, dict) else message
        return f"status {self.status}" + (f", {str(message)[:600]}" if message else "")


class Connection:
    """A connection that is kept open between requests; for one thread at a time.

    Args:
        url: address of the server.
        headers: of every request.
    """

    def __init__(self, url: str, headers: Mapping[str, str]) -> None:
        parts = urlsplit(url)
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        self._http = kind(parts.hostname or "", parts.port, timeout=CONNECT_S)
        self._url, self._prefix, self._headers = url, parts.path, dict(headers)
        self._is_aborted = False

    def request(self, method: str, path: str, body: Any = None, *, timeout_s: float) -> Reply:
        """Send a request and return the answer, whatever its status.

        A connection that the server has closed since the last request is opened again, once.

        Raises:
            ServerUnavailable: there is no answer in time.
        """
        is_used = self._http.sock is not None
        try:
            return self._send(method, path, body, timeout_s)
        except TimeoutError as error:
            self.close()
            raise ServerUnavailable(f"{self._url}: {path}: no answer within {timeout_s:g} seconds") from error
        except (OSError, http.client.HTTPException) as error:
            self.close()
            if is_used and not self._is_aborted:
                return self.request(method, path, body, timeout_s=timeout_s)
            raise ServerUnavailable(f"{self._url}: {path}: {type(error).__name__}: {error}") from error

    def _send(self, method: str, path: str, body: Any, timeout_s: float) -> Reply:
        if self._http.sock is None:
            self._http.timeout = CONNECT_S
            self._http.connect()
        self._http.sock.settimeout(timeout_s)
        content = None if body is None else json.dumps(body).encode()
        headers = self._headers if body is None else {**self._headers, "Content-Type": "application/json"}
        self._http.request(method, self._prefix + path, body=content, headers=headers)
        found = self._http.getresponse()
        return Reply(found.status, found.read().decode(errors="replace"), self._url)

    def abort(self) -> None:
        """End a request that another thread is waiting for, which then raises ServerUnavailable."""
        self._is_aborted = True
        if (sock := self._http.sock) is not None:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the connection; the next request opens it again."""
        self._http.close()
