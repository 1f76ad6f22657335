"""Python functions as tools: an environment that runs the calls of the policy and returns their results as messages."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rlcore.components import describe_error
from rlcore.data.user_code import load_reference
from rlcore.errors import ConfigError
from rlcore.protocols import Step, Turn
from rlcore_environments.calls import Calls, CallTooLate, allow_more, finished
from rlcore_environments.factory import check_tools
from rlcore_environments.options import ToolOptions

MARGIN_S = 1.0
"""What a turn may take beyond the limit of a tool that it calls, before its episode fails."""


class Tools:
    """A factory of episodes in which the policy may call functions; an episode ends with a turn that calls none.

    Args:
        options: the functions, and bounds on their calls.

    Raises:
        ConfigError: there is no function, two have one name, or one has no type hints or docstring for its schema.
    """

    example_turns = ('<tool_call>{"name": "unknown", "arguments": {}}</tool_call>', "<tool_call>{</tool_call>", "42")

    def __init__(self, options: ToolOptions) -> None:
        given = options.functions
        entries = [given] if isinstance(given, str) or callable(given) else list(given or ())
        if not entries:
            raise ConfigError("data.environment.functions: names no function; give a list of functions")
        functions = [load_reference(f, "data.environment.functions") if isinstance(f, str) else f for f in entries]
        self.options, self.tools = options, [schema_of(function) for function in functions]
        check_tools(self.tools)
        self.functions = {schema["function"]["name"]: f for schema, f in zip(self.tools, functions, strict=True)}

    def make(self) -> ToolEpisode:
        """Return the environment of one episode."""
        return ToolEpisode(self.functions, self.options)


class ToolEpisode:
    """One episode with tools."""

    def __init__(self, functions: Mapping[str, Callable[..., Any]], options: ToolOptions) -> None:
        self._functions, self._options, self._num_calls = functions, options, 0
        self._calls = Calls(1, options.timeout_s)

    def reset(self, row: Mapping[str, Any], *, seed: int) -> Sequence[Any]:  # noqa: ARG002 (an environment's signature)
        """Return no messages: the row's prompt is the question."""
        return ()

    def step(self, turn: Turn) -> Step:
        """Run the calls of a turn; one without calls is the answer."""
        if not turn.tool_calls:
            return Step(done=True, info={"num_calls": self._num_calls})
        results = [self._result(call) for call in turn.tool_calls]
        messages = [
            {"role": self._options.role, "content": text, **({"name": name} if name else {})} for name, text in results
        ]
        return Step(messages)

    def _result(self, call: Mapping[str, Any]) -> tuple[str, str]:
        """Return the name of a called function, empty if there is none, and its result or the error as text."""
        name = str(call.get("name", ""))
        if "error" in call:
            return "", f"error: {call['error']}"
        if name not in self._functions:  # the policy made it up, so that it is no name of a message
            return "", f"error: there is no tool '{name}'; there are {', '.join(self._functions)}"
        self._num_calls += 1
        if self._num_calls > self._options.max_calls:
            return name, f"error: at most {self._options.max_calls} calls are allowed"
        function, arguments = self._functions[name], dict(call["arguments"])
        try:
            inspect.signature(function).bind(**arguments)
        except TypeError as error:
            return name, f"error: {name}: {error}"
        allow_more(self._options.timeout_s + MARGIN_S)
        try:
            return name, self._cut(_as_text(self._calls.start(lambda: finished(function(**arguments))).result()))
        except CallTooLate:
            return name, f"error: {name} did not return within {self._options.timeout_s:g} seconds"
        except Exception as error:  # noqa: BLE001  the policy reads it and may try again
            return name, self._cut(f"error: {name} raised {describe_error(error)}")

    def _cut(self, text: str) -> str:
        most = self._options.max_output
        return text if len(text) <= most else f"{text[:most]}... ({len(text)} characters, of which {most} are shown)"


def schema_of(function: Any) -> dict[str, Any]:
    """Return the JSON schema of a function, from its type hints and its docstring in Google's form.

    Raises:
        ConfigError: it is no function, or its hints or docstring are incomplete.
    """
    from transformers.utils.chat_template_utils import get_json_schema

    if not callable(function):
        raise ConfigError(f"tools: {function!r:.80} is not callable; give functions")
    try:
        schema: dict[str, Any] = get_json_schema(function)
    except Exception as error:  # the library raises several kinds of its own
        name = getattr(function, "__name__", repr(function))
        raise ConfigError(
            f"tools: '{name}': {str(error).strip()}; give every argument a type hint, and describe it under `Args:` in "
            "the docstring"
        ) from error
    return schema


def _as_text(result: Any) -> str:
    if isinstance(result, str):
        return result
    try:
        return json.dumps(result, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError):
        return str(result)
