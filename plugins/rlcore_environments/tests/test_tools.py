"""Calls are read in the forms of the common families, and functions answer them within bounds."""

from __future__ import annotations

import json
import time
from typing import Any, Literal

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
    tools = Tools(ToolOptions(functions=[add, wait, large, later], timeout_s=5.0, max_output=70, max_calls=8))
    assert [tool["function"]["name"] for tool in tools.tools] == ["add", "wait", "large", "later"]
    assert tools.tools[0]["function"]["parameters"]["properties"]["a"] == {
        "type": "integer",
        "description": "The first.",
    }
    found = answers(
        tools, ADD, call("add", a=1), call("add", a=1, b="x"), call("wait", seconds=900), call("large", size=10**7),
        call("later", a=4), call("none"), {"error": "the call is no JSON"}, ADD, ADD,
    )  # fmt: skip
    assert found[0] == "3"
    assert found[1] == "error: add: missing a required argument: 'b'"
    assert found[2] == "error: add: b = 'x': must be integer"
    assert found[3] == "error: wait did not return within 5 seconds"
    assert found[4] == f"{'x' * 70}... (10000000 characters, of which 70 are shown)"
    assert found[5] == "4"
    assert found[6] == "error: there is no tool 'none'; there are add, wait, large, later"
    assert found[7] == "error: the call is no JSON"
    assert found[8:] == ["error: at most 8 calls are allowed in an episode; 2 were not run"]


def mixed(
    n: int, x: float = 0.0, flag: bool | None = None, items: list[int] | str = "", pair: tuple[int, str] = (1, ""),
    by_name: dict[str, int] | None = None, side: Literal["left", "right"] = "left", free: Any = None,
) -> str:  # fmt: skip
    """Return ok.

    Args:
        n: An integer.
        x: A number.
        flag: A switch.
        items: Numbers, or a text.
        pair: A number and a text.
        by_name: Numbers.
        side: One of two.
        free: Anything.
    """
    return "ok"


@pytest.mark.parametrize(
    "arguments",
    [
        {"n": 1}, {"n": 1, "x": 2}, {"n": 1, "x": 2.5, "flag": True}, {"n": 1, "flag": None}, {"n": 1, "items": [1, 2]},
        {"n": 1, "items": "1"}, {"n": 1, "pair": [2, "b"]}, {"n": 1, "by_name": {"a": 1}}, {"n": 1, "side": "right"},
        {"n": 1, "free": {"a": [None]}}, {"n": 1, "free": "x"},
    ],
)  # fmt: skip
def test_arguments_of_the_types_of_the_schema_are_passed(arguments: dict[str, Any]) -> None:
    assert answers(Tools(ToolOptions(functions=[mixed])), call("mixed", **arguments)) == ["ok"]


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"n": "17"}, "n = '17': must be integer"),
        ({"n": 1.5}, "n = 1.5: must be integer"),
        ({"n": True}, "n = True: must be integer"),
        ({"n": None}, "n = None: must be integer"),
        ({"n": 1, "x": "2"}, "x = '2': must be number"),
        ({"n": 1, "flag": 1}, "flag = 1: must be boolean"),
        ({"n": 1, "items": [1, "2"]}, "items[1] = '2': must be integer; or: items = [1, '2']: must be string"),
        ({"n": 1, "pair": [1]}, "pair = [1]: must have 2 items"),
        ({"n": 1, "pair": ["1", "b"]}, "pair[0] = '1': must be integer"),
        ({"n": 1, "by_name": {"a": "1"}}, "by_name.a = '1': must be integer"),
        ({"n": 1, "side": "up"}, "side = 'up': must be one of 'left', 'right'"),
    ],
)
def test_an_argument_of_another_type_is_answered_with_an_error_and_not_converted(
    arguments: dict[str, Any], error: str
) -> None:
    assert answers(Tools(ToolOptions(functions=[mixed])), call("mixed", **arguments)) == [f"error: mixed: {error}"]


def test_numbers_that_are_written_as_texts_are_not_added_as_texts() -> None:
    assert answers(Tools(ToolOptions(functions=[add])), call("add", a="17", b="23")) == [
        "error: add: a = '17': must be integer"
    ]


def test_what_the_policy_wrote_is_echoed_within_the_bound_of_results() -> None:
    tools, long = Tools(ToolOptions(functions=[add], max_output=300)), "z" * 40_000
    for made_up in (call(long), call("add", **{long: 1}), call("add", a=long, b=1), *parse_calls(
        f'<tool_call>{{"name": "{long}", "arguments": 3}}</tool_call>'
    )):  # fmt: skip
        (text,) = answers(tools, made_up)
        assert text.startswith("error: ")
        assert len(text) < 400


def test_calls_that_cannot_be_run_count_and_those_beyond_the_limit_have_one_answer() -> None:
    episode = Tools(ToolOptions(functions=[add], max_calls=4)).make()
    turn = Turn("", 0, tool_calls=(call("none"), {"error": "broken"}, ADD))
    assert len(episode.step(turn).messages) == 3
    for k, (calls, ran, left) in enumerate([((ADD,) * 3000, 1, 2999), ((ADD,), 0, 1)]):
        found = [each["content"] for each in episode.step(Turn("", k, tool_calls=calls)).messages]  # type: ignore[index,union-attr]
        assert found == ["3"] * ran + [f"error: at most 4 calls are allowed in an episode; {left} were not run"]


def test_calls_in_reasoning_are_not_read() -> None:
    made, call_text = json.dumps(ADD), f"<tool_call>{json.dumps(ADD)}</tool_call>"
    assert parse_calls(f"<think>Perhaps {call_text}?</think>42") == ()
    assert parse_calls(f"So: <think>Perhaps {call_text}?</think>\n{call_text}") == (ADD,)
    assert parse_calls(f"<think>I add.</think>\n\n{made}") == (ADD,)
    assert parse_calls(f"[THINK]Or [add(a=9, b=9)]?[/THINK][TOOL_CALLS]add[ARGS]{json.dumps(ADD['arguments'])}") == (
        ADD,
    )
    assert parse_calls(f"<think>It was cut off: {call_text}") == ()


@pytest.mark.parametrize("form", [
    '<tool_call>{"name": "find", "arguments": {"text": "TEXT"}}</tool_call>',
    '{"name": "find", "parameters": {"text": "TEXT"}}',
    '[TOOL_CALLS]find[ARGS]{"text": "TEXT"}',
    '[find(text="TEXT")]',
])  # fmt: skip
@pytest.mark.parametrize("text", ["<think>", "<think>a</think>", "</think>"])
def test_marks_of_reasoning_in_an_argument_are_text(form: str, text: str) -> None:
    assert parse_calls(form.replace("TEXT", text)) == ({"name": "find", "arguments": {"text": text}},)


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


@pytest.mark.slow
def test_slow_calls_of_one_turn_each_have_the_time_of_a_tool() -> None:
    episode = Tools(ToolOptions(functions=[wait], timeout_s=6.0)).make()
    turn = Turn("", 0, tool_calls=(call("wait", seconds=3), call("wait", seconds=3), call("wait", seconds=900)))
    step = Calls(1, 5.0).start(episode.step, turn).result()
    assert [message["content"] for message in step.messages] == [
        "done", "done", "error: wait did not return within 6 seconds",
    ]  # fmt: skip
