"""An MCP server of the tests, written with the official SDK; it speaks over its standard input and output."""

from __future__ import annotations

import os
import sys
import time

from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.server.mcpserver.utilities.types import Image

server = MCPServer("tests")
seen: list[str] = []


@server.tool()
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@server.tool()
def note(text: str) -> str:
    """Note a text, and return all texts that this server has noted, with its process."""
    seen.append(text)
    return f"{os.getpid()}: {' '.join(seen)}"


@server.tool()
def refuse(reason: str) -> str:
    """Raise an error."""
    raise ToolError(reason)


@server.tool()
def wait(seconds: float) -> str:
    """Wait."""
    time.sleep(seconds)
    return "done"


@server.tool()
def draw() -> Image:
    """Return a picture."""
    return Image(data=b"x", format="png")


@server.tool()
def die() -> str:
    """End the server."""
    print("out of luck", file=sys.stderr, flush=True)
    os._exit(3)


if __name__ == "__main__":
    server.run()
