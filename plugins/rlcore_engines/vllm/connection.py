"""One HTTP connection to a server, which another thread can abort.

Also in this file: errors about serving engines.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import ssl
import time
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

import attrs

from rlcore.errors import ConfigError, RLCoreError
from rlcore.safe_text import hide_logins, shorten


class EngineError(RLCoreError, RuntimeError):
    """A server that cannot be started or reached, or whose answer cannot be used."""


class StaleWeights(EngineError):
    """A server whose log-probs are not those of the policy's new weights."""


class ServerUnavailable(Exception):
    """A server that does not answer, or answers that it failed: it may work later, or another one does."""


CONNECT_S = 10.0
CLOSED = (ssl.SSLEOFError, ssl.SSLZeroReturnError, ssl.SSLSyscallError)
"""Errors of a secure connection that was closed."""
MOST_BYTES = 256 * 2**20
"""Longest body of an answer that is read."""


@attrs.frozen
class Reply:
    """An answer.

    Attributes:
        status: its status code.
        text: its body.
        where: the server, for errors.
        retry_after: its header of that name, empty if it has none.
    """

    status: int
    text: str
    where: str
    retry_after: str = ""

    def json(self) -> Any:
        """Return the body.

        Raises:
            EngineError: it is no JSON.
        """
        try:
            return json.loads(self.text)
        except ValueError as error:
            raise EngineError(f"{self.where}: the answer is no JSON: {shorten(self.text, 200)}") from error

    def describe(self) -> str:
        """Return the status, and the message of an error if there is one."""
        message: object = self.text
        with contextlib.suppress(ValueError):
            message = json.loads(self.text)
            for name in ("error", "message", "detail"):
                message = message.get(name, message) if isinstance(message, dict) else message
        return f"status {self.status}" + (f", {hide_logins(str(message))[:600]}" if message else "")


def check_url(url: str, *, example: str, instead: str) -> None:
    """Check the form of an address; no message shows what may be a key.

    Args:
        url: the address.
        example: one of the right form, for the message.
        instead: where a key belongs, for the message.

    Raises:
        ConfigError: it is none of a server, or has parts that requests would leave out.
    """
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError as error:
        raise ConfigError(f"url: is no address: {error}") from error
    if "@" in parts.netloc:
        raise ConfigError(f"url: holds a user name or a password; leave it out, and {instead}")
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
        raise ConfigError(
            f"url = '{parts.scheme}://{parts.netloc}{parts.path}': must be an http:// or https:// address without "
            f"? and #, such as {example}"
        )


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

    def request(self, method: str, path: str, body: object = None, *, timeout_s: float) -> Reply:
        """Send a request and return the answer, whatever its status.

        A connection that the server has closed since the last request is opened again, once.

        Raises:
            ServerUnavailable: there is no answer in time.
            EngineError: the answer does not end within MOST_BYTES, or there is no secure connection.
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
            if isinstance(error, ssl.SSLError) and not isinstance(error, CLOSED):  # no repetition changes it
                raise EngineError(
                    f"{self._url}: there is no secure connection: {error}; if the certificate is one of your own, name "
                    "its issuer's file in the variable SSL_CERT_FILE; if the server has none, use http://"
                ) from error
            raise ServerUnavailable(f"{self._url}: {path}: {type(error).__name__}: {error}") from error

    def _send(self, method: str, path: str, body: object, timeout_s: float) -> Reply:
        until = time.monotonic() + timeout_s
        if self._http.sock is None:
            self._http.timeout = CONNECT_S
            self._http.connect()
        if self._is_aborted:
            raise ConnectionAbortedError("the request was given up")
        sock = self._http.sock
        sock.settimeout(timeout_s)
        content = None if body is None else json.dumps(body).encode()
        headers = self._headers if body is None else {**self._headers, "Content-Type": "application/json"}
        self._http.request(method, self._prefix + path, body=content, headers=headers)
        found = self._http.getresponse()
        text = self._read(found, sock, until).decode(errors="replace")
        return Reply(found.status, text, self._url, found.headers.get("Retry-After") or "")

    def _read(self, found: http.client.HTTPResponse, sock: socket.socket, until: float) -> bytes:
        """Return the body; the time limit holds for all of it, and not for each of its parts."""
        parts, size = list[bytes](), 0
        while part := found.read1(2**20):
            parts.append(part)
            size += len(part)
            left_s = until - time.monotonic()
            if left_s <= 0:
                raise TimeoutError
            if size > MOST_BYTES:
                self.close()
                raise EngineError(f"{self._url}: the answer is longer than {MOST_BYTES} bytes, which no completion is")
            with contextlib.suppress(OSError):  # closed, if the body has ended with the connection
                sock.settimeout(left_s)
        missing = found.length or 0
        found.close()  # the connection takes the next request
        if missing:
            raise http.client.IncompleteRead(b"", missing)
        return b"".join(parts)

    def abort(self) -> None:
        """End a request that another thread is waiting for, which then raises ServerUnavailable."""
        self._is_aborted = True
        if (sock := self._http.sock) is not None:
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Close the connection; the next request opens it again."""
        self._http.close()


class Connections:
    """Connections to one server, as many as there are requests at a time; for several threads.

    Args:
        url: address of the server.
        headers: of every request.
    """

    def __init__(self, url: str, headers: Mapping[str, str]) -> None:
        self._url, self._headers, self._is_aborted = url, headers, False
        self._free, self._all = list[Connection](), list[Connection]()

    def request(self, method: str, path: str, body: object = None, *, timeout_s: float) -> Reply:
        """Send a request on a free connection, and return the answer as `Connection.request` does."""
        try:
            connection = self._free.pop()
        except IndexError:
            connection = Connection(self._url, self._headers)
            self._all.append(connection)
        if self._is_aborted:
            connection.abort()
        try:
            return connection.request(method, path, body, timeout_s=timeout_s)
        finally:
            self._free.append(connection)

    def abort(self) -> None:
        """End all requests, which then raise ServerUnavailable, as later ones do."""
        self._is_aborted = True
        for connection in list(self._all):
            connection.abort()

    def close(self) -> None:
        """Close all connections."""
        for connection in self._all:
            connection.close()
