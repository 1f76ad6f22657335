"""Keys of MCP servers, and the last lines of servers that end."""

from __future__ import annotations

import pickle
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from mcp_calls import double, entry, say

from rlcore.config import structure
from rlcore.errors import ConfigError
from rlcore.settings import TrainConfig, to_record
from rlcore_environments.mcp_tools import ServerGone
from rlcore_environments.options import ToolOptions
from rlcore_environments.tools import Tools

LEAVES = '''
import os, sys
from mcp.server.mcpserver import MCPServer

server = MCPServer("leaves")
wire, ends = os.fstat(1).st_ino, os.dup(0)  # the library duplicates both, and replaces them

@server.tool()
def length(name: str) -> int:
    """Return the length of an environment variable, 0 if it is not set."""
    return len(os.environ.get(name, ""))

@server.tool()
def leave() -> str:
    """Close the output, and write the reason when the input ends."""
    for number in map(int, os.listdir("/proc/self/fd")):
        try:
            if os.fstat(number).st_ino == wire:
                os.close(number)
        except OSError:  # of the listing itself
            pass
    while os.read(ends, 1000):
        pass
    os.write(2, f"out of luck, {os.environ.get('LEVEL')} {os.environ.get('DOOR_KEY')}\\n".encode())
    os._exit(3)

server.run()
'''


@pytest.mark.slow
def test_a_server_that_ends_has_its_last_lines_in_the_message(tmp_path: Path) -> None:
    """It closes its output first, and writes why when its input ends."""
    program = tmp_path / "server.py"
    program.write_text(LEAVES)
    found = Tools(ToolOptions(functions=[{"mcp": {"command": "python", "args": [str(program)]}}], timeout_s=300.0))
    with pytest.raises(ServerGone, match=r"has ended; its last output: '?out of luck"):
        say(found.make(), ("leave", {}))


@pytest.mark.slow
def test_keys_of_a_program_come_from_the_environment_and_are_in_no_record_or_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "server.py"
    program.write_text(LEAVES)
    given = {"mcp": {"command": "python", "args": [str(program)], "env_from": ["DOOR_KEY", "LEVEL"]}}
    monkeypatch.delenv("DOOR_KEY", raising=False)
    monkeypatch.setenv("LEVEL", "1")
    with pytest.raises(ConfigError, match=r"\[0\]\.mcp: env_from: the environment variable 'DOOR_KEY' is not set"):
        Tools(ToolOptions(functions=[given]))
    monkeypatch.setenv("DOOR_KEY", "open-sesame")
    found = Tools(ToolOptions(functions=[given], timeout_s=300.0))
    assert "sesame" not in repr(pickle.dumps(found))
    episode = found.make()
    assert say(episode, ("length", {"name": "DOOR_KEY"}), ("length", {"name": "LEVEL"})) == ["11", "1"]
    with pytest.raises(ServerGone, match=r"last output: '?out of luck, 1 \[DOOR_KEY\]'?$"):
        say(episode, ("leave", {}))
    with pytest.raises(ConfigError, match=r"\[0\]\.mcp: env_from is for a program"):
        Tools(ToolOptions(functions=[{"mcp": {"url": "http://127.0.0.1:1", "env_from": ["LEVEL"]}}]))


@pytest.fixture
def guarded() -> Iterator[str]:
    """Return the address of a server of its own that answers only requests with a key and another header."""
    import uvicorn
    from mcp.server.mcpserver import MCPServer

    inner = MCPServer("guarded")
    inner.add_tool(double)
    app = inner.streamable_http_app()

    async def checked(scope: Any, receive: Any, send: Any) -> None:
        headers = dict(scope.get("headers") or ())
        right = headers.get(b"authorization") == b"Bearer open-sesame" and headers.get(b"x-team") == b"blue-door"
        if scope["type"] != "http" or right:
            await app(scope, receive, send)
            return
        await send({"type": "http.response.start", "status": 401, "headers": []})
        await send({"type": "http.response.body", "body": b""})

    server = uvicorn.Server(uvicorn.Config(checked, port=0, log_level="critical"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.02)
    yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}/mcp"
    server.should_exit = True
    thread.join(300)


def test_keys_of_a_server_come_from_the_environment_and_are_in_no_record(
    guarded: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DOOR_KEY", "open-sesame")
    monkeypatch.setenv("DOOR_TEAM", "blue-door")
    given = {"mcp": {"url": guarded, "key_env": "DOOR_KEY", "header_env": {"X-Team": "DOOR_TEAM"}}}
    found = Tools(ToolOptions(functions=[given]))
    episode = found.make()
    assert say(episode, ("double", {"number": 4})) == ["8"]
    episode.close()
    settings = structure(TrainConfig, {"data": {"environment": {"name": "tools", "functions": [given]}}}, where="test")
    for text in (repr(to_record(settings)), repr(found.servers[0].options), repr(pickle.dumps(found))):
        assert "DOOR_KEY" in text
        assert "open-sesame" not in text
        assert "blue-door" not in text
    monkeypatch.setenv("DOOR_KEY", "open-barley")
    with pytest.raises(ConfigError, match="cannot be reached") as wrong:
        Tools(ToolOptions(functions=[given]))
    assert "barley" not in str(wrong.value)
    monkeypatch.delenv("DOOR_KEY")
    with pytest.raises(ConfigError, match=r"functions\[0\]\.mcp: the environment variable 'DOOR_KEY' is not set"):
        Tools(ToolOptions(functions=[given]))
    monkeypatch.setenv("DOOR_KEY", "two\nlines")
    with pytest.raises(ConfigError, match="the value of 'DOOR_KEY' has characters that no header can have"):
        Tools(ToolOptions(functions=[given]))
    with pytest.raises(ConfigError, match="key_env and header_env are for a server with a `url`"):
        Tools(ToolOptions(functions=[entry(key_env="DOOR_TEAM")]))
