"""Tools that end the program, that return no proper text, or that no call can reach."""

from __future__ import annotations

import asyncio
import sys

import pytest

from rlcore.errors import ConfigError
from rlcore.protocols import Turn
from rlcore_environments.options import ToolOptions
from rlcore_environments.tools import Tools


async def later(code: int) -> int:
    """Return the number.

    Args:
        code: The number.
    """
    return code


def leave(code: int) -> str:
    """Leave.

    Args:
        code: The code.
    """
    sys.exit(code)


async def leave_later(code: int) -> str:
    """Leave.

    Args:
        code: The code.
    """
    sys.exit(code)


def give_up(code: int) -> str:
    """Give up.

    Args:
        code: The code.
    """
    raise asyncio.CancelledError(code)


def test_a_tool_that_exits_is_an_error_for_the_policy_and_later_calls_are_answered() -> None:
    tools = Tools(ToolOptions(functions=[leave, leave_later, give_up, later], timeout_s=300.0))
    turn = Turn("", 0, tool_calls=[{"name": name, "arguments": {"code": 4}} for name in tools.functions])
    found = [message["content"] for message in tools.make().step(turn).messages]  # type: ignore[index,union-attr]
    assert found == [
        "error: leave raised SystemExit: 4", "error: leave_later raised RuntimeError: it raised SystemExit: 4",
        "error: give_up raised CancelledError: 4", "4",
    ]  # fmt: skip


def half(code: int) -> str:
    """Return half of a character.

    Args:
        code: Its number.
    """
    return f"a{chr(code)}b"


def test_half_a_character_in_a_result_is_replaced() -> None:
    episode = Tools(ToolOptions(functions=[half])).make()
    turn = Turn("", 0, tool_calls=[{"name": "half", "arguments": {"code": code}} for code in (0xD800, 0xE9)])
    assert [each["content"] for each in episode.step(turn).messages] == ["a?b", "a\u00e9b"]  # type: ignore[index,union-attr]


def test_an_argument_without_a_name_is_refused() -> None:
    def double(a: int, /) -> int:
        """Double.

        Args:
            a: A number.
        """
        return 2 * a

    with pytest.raises(ConfigError, match="tools: 'double': calls pass arguments by name, which a does not allow"):
        Tools(ToolOptions(functions=[double]))
