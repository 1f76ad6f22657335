"""Calls of tools of an MCP server, for tests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rlcore.protocols import Turn
from rlcore_environments.tools import ToolEpisode

SERVER = Path(__file__).with_name("mcp_server.py")


def entry(**options: Any) -> dict[str, Any]:
    return {"mcp": {"command": "python", "args": [str(SERVER)], **options}}


def double(number: int) -> int:
    """Double a number.

    Args:
        number: The number.
    """
    return 2 * number


def say(episode: ToolEpisode, *calls: tuple[str, dict[str, Any]]) -> list[str]:
    turn = Turn("", 0, tool_calls=[{"name": name, "arguments": arguments} for name, arguments in calls])
    return [message["content"] for message in episode.step(turn).messages]  # type: ignore[index,union-attr]
