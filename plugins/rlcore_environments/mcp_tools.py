"""Tools of MCP servers: `{mcp: {command: ..., args: [...]}}` or `{mcp: {url: ...}}` among the functions of `tools`.

Sessions run on the event loop of environments, each in a task of its own, which begins and ends it. An episode begins a
session with its first call of a server's tool, and ends it with its own end; with `session: run` all episodes share
one, which begins with the first call and ends with the run.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import sys
import tempfile
import threading
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import Future
from contextlib import asynccontextmanager
from typing import Any

from rlcore.components import describe_error
from rlcore.config import structure
from rlcore.errors import ConfigError
from rlcore.safe_text import shorten, show
from rlcore_environments.calls import allow_more, background, event_loop
from rlcore_environments.options import McpOptions

OPTION = "data.environment.functions"
CONNECT_S, CLOSE_S = 60.0, 10.0
"""The longest time in which a server begins a session or lists its tools, and in which a session ends."""
READ_S = 300.0
"""The longest silence of a server at an address that needs headers."""
MARGIN_S = 1.0
"""What a call may take beyond its limit, which the client applies itself."""
TAIL = 300
"""Characters of a server's last output in messages."""
SHORTEST_SECRET = 4
"""Characters of a value of `env_from` that is left out of messages; shorter ones, such as 1, are no keys."""


class ServerGone(Exception):
    """An MCP server cannot be reached or has ended, so that the episode cannot go on."""


class ToolFailed(Exception):
    """A tool returned an error, which the policy reads."""


class McpSession:
    """A connection to a server, which begins with its first use.

    Args:
        options: the server.
    """

    def __init__(self, options: McpOptions) -> None:
        self._options, self._lock = options, threading.Lock()
        self._client: Future[Any] = Future()
        self._task: Future[None] | None = None
        self._stop, self._ended = asyncio.Event(), threading.Event()
        self._said = ""

    def list_tools(self) -> list[Any]:
        """Return the server's tools.

        Raises:
            ServerGone: it cannot be reached, or does not list them.
        """
        client = self._open()

        async def pages() -> list[Any]:
            page = await client.list_tools()
            found = list(page.tools)
            while page.next_cursor:
                page = await client.list_tools(cursor=page.next_cursor)
                found += page.tools
            return found

        try:
            found: list[Any] = background(pages()).result(CONNECT_S)
        except Exception as error:
            raise self._gone(f"does not list its tools: {_first(error)}") from error
        return found

    def call(self, name: str, arguments: Mapping[str, Any], timeout_s: float) -> str:
        """Return the result of a tool as text.

        Raises:
            ServerGone: the server cannot be reached, or has ended.
            ToolFailed: the tool, or the server, returned an error.
            TimeoutError: the tool has not returned in time.
        """
        allow_more(CONNECT_S)  # for the import too, which takes seconds in a process that has not listed the tools
        from mcp import MCPError
        from mcp_types import CONNECTION_CLOSED, REQUEST_TIMEOUT

        client = self._open()
        allow_more(timeout_s + 2 * MARGIN_S)
        try:
            result = background(client.call_tool(name, dict(arguments), timeout_s)).result(timeout_s + MARGIN_S)
        except MCPError as error:
            if error.code == REQUEST_TIMEOUT:
                raise TimeoutError from None
            if error.code == CONNECTION_CLOSED:
                raise self._gone("has ended") from None
            raise ToolFailed(self._options.hide(error.message)) from None
        except TimeoutError:
            raise
        except Exception as error:
            raise self._gone(f"cannot be reached: {_first(error)}") from error
        text = self._options.hide(text_of(result))
        if result.is_error:
            raise ToolFailed(text)
        return text

    def close(self) -> None:
        """End the session, and the program that was started for it."""
        if self._task is None:
            return
        allow_more(CLOSE_S + MARGIN_S)
        if self._client.done():
            event_loop(os.getpid()).call_soon_threadsafe(self._stop.set)
        else:  # it waits for the server
            self._task.cancel()
        if not self._ended.wait(CLOSE_S):
            self._task.cancel()

    def _open(self) -> Any:
        with self._lock:
            if self._task is None:
                self._task = background(self._serve())
        allow_more(CONNECT_S)
        try:
            return self._client.result(CONNECT_S)
        except TimeoutError:
            raise self._gone(f"did not begin a session within {CONNECT_S:g} seconds") from None
        except Exception as error:
            raise self._gone(f"cannot be reached: {_first(error)}") from error

    def _gone(self, what: str) -> ServerGone:
        """End the session, so that the program has written all of its output, and return the error."""
        self.close()
        last = f"; its last output: {shorten(self._said)}" if self._said else ""
        return ServerGone(f"{self._options.name} {what}{last}")

    async def _serve(self) -> None:
        """Keep the session from its beginning to its end, in one task, as the library requires."""
        options, secrets = self._options, dict[str, str]()
        with tempfile.TemporaryFile("w+") as output:
            try:
                from mcp import Client, StdioServerParameters, stdio_client

                server: Any = options.url
                if server is None:
                    secrets = options.secrets()
                    program = StdioServerParameters(
                        command=sys.executable if options.command == "python" else str(options.command),
                        args=list(options.args), env={**(options.env or {}), **secrets}, cwd=options.cwd,
                    )  # fmt: skip
                    server = stdio_client(program, errlog=output)
                async with (
                    _with_headers(options) as server_with_headers,
                    Client(server_with_headers or server) as client,
                ):
                    self._client.set_result(client)
                    await self._stop.wait()
            except BaseException as error:
                if not self._client.done():
                    self._client.set_exception(error if isinstance(error, Exception) else ServerGone("it was ended"))
                raise
            finally:
                self._said = self._options.hide(_tail(output.fileno(), secrets))
                self._ended.set()


class McpServer:
    """A server whose tools the policy may call; it lists them once, when it is made.

    Args:
        given: its options.
        where: the place of the options, for messages.

    Raises:
        ConfigError: an option cannot be used, the package `mcp` is missing, or the server does not list its tools.
    """

    def __init__(self, given: Any, where: str) -> None:
        self.options: McpOptions = structure(McpOptions, given, where="config", path=where)
        try:
            self.options.check()
        except ConfigError as error:
            raise ConfigError(f"{where}: {error}") from None
        if importlib.util.find_spec("mcp") is None:
            raise ConfigError(
                f"{where}: tools of MCP servers need the package mcp: pip install 'rlcore-environments[mcp]'"
            )
        self._lock, self._shared = threading.Lock(), list[McpSession]()
        session = McpSession(self.options)
        try:
            tools = {tool.name: tool for tool in session.list_tools()}
        except ServerGone as error:
            raise ConfigError(f"{where}: {error}") from None
        finally:
            session.close()
        only = list(tools) if self.options.only is None else self.options.only
        if unknown := [name for name in only if name not in tools]:
            raise ConfigError(f"{where}.only: there is no tool '{unknown[0]}'; there are {', '.join(tools) or 'none'}")
        self.schemas = [_schema(tools[name]) for name in only]

    def __getstate__(self) -> dict[str, Any]:
        return {"options": self.options, "schemas": self.schemas}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__ |= state | {"_lock": threading.Lock(), "_shared": list[McpSession]()}

    @property
    def names(self) -> list[str]:
        """The names of its tools."""
        return [schema["function"]["name"] for schema in self.schemas]

    def session(self) -> tuple[McpSession, Callable[[], None]]:
        """Return the session of an episode, and what ends it with the episode."""
        if self.options.session == "episode":
            own = McpSession(self.options)
            return own, own.close
        with self._lock:
            if not self._shared:
                self._shared.append(McpSession(self.options))
            return self._shared[-1], lambda: None

    def replace(self, gone: McpSession) -> None:
        """Let later episodes have another shared session, because the server of this one is gone."""
        with self._lock:
            if gone in self._shared:
                self._shared.remove(gone)
        gone.close()

    def close(self) -> None:
        """End the shared session."""
        with self._lock:
            shared, self._shared = self._shared, []
        for session in shared:
            session.close()


@asynccontextmanager
async def _with_headers(options: McpOptions) -> AsyncIterator[Any]:
    """Make what connects to an address with headers; None if there are none."""
    headers = options.headers()
    if not headers:
        yield None
        return
    import httpx2
    from mcp.client.streamable_http import streamable_http_client

    limits = httpx2.Timeout(CONNECT_S, read=READ_S)
    async with httpx2.AsyncClient(headers=headers, timeout=limits) as client:
        yield streamable_http_client(str(options.url), http_client=client)


def text_of(result: Any) -> str:
    """Return the content of a result as text: its texts, the kinds of other parts, or else its structure as JSON."""
    parts = [part.text if part.type == "text" else f"[{part.type}]" for part in result.content]
    if not parts and result.structured_content is not None:
        return json.dumps(result.structured_content, ensure_ascii=False)
    return "\n".join(parts)


def server_of(entry: Any, where: str = OPTION) -> McpServer:
    """Return the server that an entry of the functions names.

    Raises:
        ConfigError: it has another form, or the server cannot be used.
    """
    if set(entry) != {"mcp"} or not isinstance(entry["mcp"], Mapping):
        raise ConfigError(f"{where}: {show(entry)}: give a function, or {{mcp: {{command: ..., args: [...]}}}}")
    return McpServer(entry["mcp"], f"{where}.mcp")


def _tail(output: int, secrets: Mapping[str, str]) -> str:
    """Return the end of a program's output, in a file whose position belongs to the program, without the secrets."""
    most = TAIL + max((len(value.encode()) for value in secrets.values()), default=0)
    text = os.pread(output, most, max(os.fstat(output).st_size - most, 0)).decode(errors="replace")
    for name, value in secrets.items():
        text = text.replace(value, f"[{name}]") if len(value) >= SHORTEST_SECRET else text
    return text[-TAIL:].strip()


def _schema(tool: Any) -> dict[str, Any]:
    function = {"name": tool.name, "description": tool.description or "", "parameters": dict(tool.input_schema)}
    return {"type": "function", "function": function}


def _first(error: BaseException) -> str:
    """Return the first error of a group as text."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return describe_error(error)
