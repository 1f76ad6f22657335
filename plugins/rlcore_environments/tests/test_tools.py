"""Calls are read in the forms of the common families, and functions answer them within bounds."""

from __future__ import annotations

import time
from typing import Any

import pytest

from rlcore.errors import ConfigError
from rlcore.protocols import Turn
from rlcore_environments.calls import Calls
from rlcore_environments.options import ToolOptions
from rlcore_environments.tool_calls import parse_calls
from rlcore_environments.tools import Tools

ADD = {"name": "add", "arguments": {"a": 1, "b": 2}}


def add(a: int, b: int) -> int:
    """Add two numbers.

    Args:
        a: The first.
        b: The second.
    """
    return a + b


def wait(seconds: float) -> str:
    """Wait.

    Args:
        seconds: How long.
    """
    time.sleep(seconds)
    return "done"


def large(size: int) -> str:
    """Return a large text.

    Args:
        size: Its length.
    """
    return "x" * size


async def later(a: int) -> int:
    """Return the number.

    Args:
        a: The number.
    """
    return a


@pytest.mark.parametrize(
    "text",
    [
        'I add.\n<tool_call>\n{"name": "add", "arguments": {"a": 1, "b": 2}}\n</tool_call>',
        '<tool_call>{"name": "add", "arguments": "{\\"a\\": 1, \\"b\\": 2}"}',
        '{"name": "add", "parameters": {"a": 1, "b": 2}}',
        '<|python_tag|>{"type": "function", "function": {"name": "add", "parameters": {"a": 1, "b": 2}}}',
        '[TOOL_CALLS] [{"name": "add", "arguments": {"a": 1, "b": 2}}]',
        'I add. [TOOL_CALLS]add[ARGS]{"a": 1, "b": 2}',
        '[TOOL_CALLS]add[CALL_ID]abc123def[ARGS]{"a": 1, "b": 2}',
        '[{"name": "add", "arguments": {"a": 1, "b": 2}}]',
        "[add(a=1, b=2)]",
        "Now:\n```tool_code\nadd(a=1, b=2)\n```",
    ],
)
def test_a_call_is_read_in_the_form_of_each_family(text: str) -> None:
    assert parse_calls(text) == (ADD,)


@pytest.mark.parametrize("text", [
    "", "3", "add(1, 2) is 3", "{}", "[1, 2]", "a [link](x)", '{"answer": 3}', '{"name": "Bob", "age": 3}',
    '[{"name": "Bob"}, {"name": "Ann"}]',
])  # fmt: skip
def test_an_answer_has_no_calls(text: str) -> None:
    assert parse_calls(text) == ()


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("<tool_call>{add}</tool_call>", "the call is no JSON"),
        ('<tool_call>{"arguments": {}}</tool_call>', "the call has no `name`"),
        ('<tool_call>{"name": "add", "arguments": 3}</tool_call>', "the arguments of add are no object"),
        ('<tool_call>"add"</tool_call>', "a call is an object with `name` and `arguments`, not str"),
        ("[TOOL_CALLS]add[ARGS]{a: 1}", "the arguments are no JSON"),
        ("[TOOL_CALLS]add[ARGS][1]", "the arguments of add are no object"),
        ("[TOOL_CALLS]add", "the call is no JSON"),
        ("[add(1, 2)]", r"the arguments of add have no names; write add\(name=value\)"),
        ("[add(a=b)]", "an argument of add is no literal"),
        ("x" * 200_000, "calls are read from at most 100000"),
    ],
)
def test_a_broken_call_has_an_error(text: str, error: str) -> None:
    (call,) = parse_calls(text)
    with pytest.raises(AssertionError, match=error):
        raise AssertionError(call["error"])


def test_several_calls_are_read_in_their_order() -> None:
    text = (
        '<tool_call>{"name": "f", "arguments": {}}</tool_call>\n<tool_call>{"name": "g", "arguments": {}}</tool_call>'
    )
    assert [call["name"] for call in parse_calls(text)] == ["f", "g"]
    named = '[TOOL_CALLS]f[ARGS]{"a": "[x]"}[TOOL_CALLS]g[ARGS]{}'
    assert parse_calls(named) == ({"name": "f", "arguments": {"a": "[x]"}}, {"name": "g", "arguments": {}})
    bare = '{"name": "f", "parameters": {}}; {"name": "g", "parameters": {}}'
    assert [call["name"] for call in parse_calls(bare)] == ["f", "g"]


def answers(tools: Tools, *calls: dict[str, Any]) -> list[str]:
    step = tools.make().step(Turn("", 0, tool_calls=calls))
    assert not step.done
    return [message["content"] for message in step.messages]  # type: ignore[index,union-attr]


def call(name: str, **arguments: Any) -> dict[str, Any]:
    return {"name": name, "arguments": arguments}


def test_results_and_errors_are_texts_for_the_policy() -> None:
    tools = Tools(ToolOptions(functions=[add, wait, large, later], timeout_s=0.2, max_output=5, max_calls=6))
    assert [tool["function"]["name"] for tool in tools.tools] == ["add", "wait", "large", "later"]
    assert tools.tools[0]["function"]["parameters"]["properties"]["a"] == {
        "type": "integer",
        "description": "The first.",
    }
    found = answers(
        tools, ADD, call("add", a=1), call("add", a=1, b="x"), call("wait", seconds=30), call("large", size=10**7),
        call("later", a=4), call("none"), {"error": "the call is no JSON"}, ADD, ADD,
    )  # fmt: skip
    assert found[0] == "3"
    assert found[1] == "error: add: missing a required argument: 'b'"
    assert found[2].startswith("error... (7")
    assert found[3] == "error: wait did not return within 0.2 seconds"
    assert found[4] == "xxxxx... (10000000 characters, of which 5 are shown)"
    assert found[5] == "4"
    assert found[6] == "error: there is no tool 'none'; there are add, wait, large, later"
    assert found[7] == "error: the call is no JSON"
    assert found[-1] == "error: at most 6 calls are allowed"


def test_a_turn_without_calls_ends_the_episode() -> None:
    assert Tools(ToolOptions(functions=[add])).make().step(Turn("3", 0)).done


def test_an_answer_that_the_limit_cut_off_is_no_answer() -> None:
    step = Tools(ToolOptions(functions=[add])).make().step(Turn("3 and", 0, truncated=True))
    assert (step.done, step.truncated) == (False, True)


def test_tools_of_one_name_are_refused() -> None:
    with pytest.raises(ConfigError, match="tools: two tools are called 'add', so that a call of it is ambiguous"):
        Tools(ToolOptions(functions=[add, add]))


def test_a_function_without_hints_is_refused() -> None:
    with pytest.raises(ConfigError, match="give every argument a type hint, and describe it under `Args:`"):
        Tools(ToolOptions(functions=[lambda a: a]))


def test_no_function_is_refused() -> None:
    with pytest.raises(
        ConfigError, match=r"tools \(data\.environment\.functions\) = None: give a list with at least one"
    ):
        Tools(ToolOptions())


def test_a_name_that_the_policy_made_up_is_no_name_of_a_message() -> None:
    episode = Tools(ToolOptions(functions=[add])).make()
    step = episode.step(Turn("", 0, tool_calls=(call("no</s>ne"), ADD)))
    assert [message.get("name", "") for message in step.messages] == ["", "add"]  # type: ignore[union-attr]


def test_slow_calls_of_one_turn_each_have_the_time_of_a_tool() -> None:
    episode = Tools(ToolOptions(functions=[wait], timeout_s=0.4)).make()
    turn = Turn("", 0, tool_calls=(call("wait", seconds=0.15), call("wait", seconds=0.15), call("wait", seconds=9)))
    step = Calls(1, 0.2).start(episode.step, turn).result()
    assert [message["content"] for message in step.messages] == [
        "done", "done", "error: wait did not return within 0.4 seconds",
    ]  # fmt: skip
