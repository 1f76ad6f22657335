"""Tools: an environment that runs the calls of the policy and returns their results as messages.

Tools are Python functions, and those of MCP servers.
"""

from __future__ import annotations

import inspect
import json
from asyncio import CancelledError
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from rlcore.components import describe_error
from rlcore.data.user_code import load_reference
from rlcore.errors import ConfigError
from rlcore.protocols import Step, Turn
from rlcore.safe_text import shorten, show
from rlcore_environments.answers import check_tools
from rlcore_environments.calls import Calls, CallTooLate, allow_more, finished, runs_inline
from rlcore_environments.mcp_tools import OPTION, McpServer, McpSession, ServerGone, ToolFailed, server_of
from rlcore_environments.options import ToolOptions
from rlcore_environments.tool_calls import wrong_argument
from rlcore_environments.worker import OwnThread

Schema = Mapping[str, Any]
UNNAMED = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.VAR_POSITIONAL)
MARGIN_S = 1.0
"""What a turn may take beyond the limit of a tool that it calls, before its episode fails."""


class Tools:
    """A factory of episodes in which the policy may call tools; an episode ends with a turn that calls none.

    Args:
        options: the functions and servers, and bounds on calls.

    Raises:
        ConfigError: there is no function, a server cannot be used, two tools have one name, or a function has no type
            hints or docstring for its schema.
    """

    gives_rewards = False
    example_turns = ('<tool_call>{"name": "unknown", "arguments": {}}</tool_call>', "<tool_call>{</tool_call>", "42")

    def __init__(self, options: ToolOptions) -> None:
        given = options.functions
        entries = [given] if isinstance(given, str | Mapping) or callable(given) else given
        if not entries or not isinstance(entries, list | tuple):
            raise ConfigError(
                f"tools ({OPTION}) = {show(given)}: give a list with at least one function, such as tools=[add]"
                + ("; leave it out for a policy without tools" if given is not None else "")
            )
        self.options, self.tools = options, list[dict[str, Any]]()
        self.functions, self.servers = dict[str, tuple[Callable[..., Any], Schema]](), list[McpServer]()
        for i, entry in enumerate(entries):
            if isinstance(entry, Mapping):
                self.servers.append(server_of(entry, f"{OPTION}[{i}]"))
                self.tools += self.servers[-1].schemas
            else:
                function = load_reference(entry, OPTION) if isinstance(entry, str) else entry
                schema = schema_of(function)
                self.tools.append(schema)
                self.functions[schema["function"]["name"]] = (function, schema)
        check_tools(self.tools)

    def make(self) -> ToolEpisode:
        """Return the environment of one episode."""
        return ToolEpisode(self.functions, self.options, self.servers)

    def shutdown(self) -> None:
        """End the sessions that episodes share."""
        for server in self.servers:
            server.close()


class ToolEpisode:
    """One episode with tools.

    Args:
        functions: Python functions and their schemas by name.
        options: bounds on calls.
        servers: MCP servers, whose tools are called in sessions.
    """

    def __init__(
        self,
        functions: Mapping[str, tuple[Callable[..., object], Schema]],
        options: ToolOptions,
        servers: Sequence[McpServer] = (),
    ) -> None:
        self._functions, self._options, self._num_calls, self._num_errors = functions, options, 0, 0
        self._calls, self._thread = Calls(1, options.timeout_s), OwnThread("rlcore-tools")
        self._servers = {name: server for server in servers for name in server.names}
        self._sessions: dict[int, tuple[McpSession, Callable[[], None]]] = {}

    def close(self) -> None:
        """End the sessions of this episode, and its thread."""
        self._thread.end()
        for _, end in self._sessions.values():
            end()

    def reset(self, row: Mapping[str, object], *, seed: int) -> Sequence[Any]:  # noqa: ARG002 (an environment's signature)
        """Return no messages: the row's prompt is the question."""
        return ()

    def step(self, turn: Turn) -> Step:
        """Run the calls of a turn; one without calls is the answer, unless the limit of tokens cut it off."""
        if not turn.tool_calls:
            info = {"num_calls": self._num_calls, "tool_errors": self._num_errors}
            return Step(done=not turn.truncated, truncated=turn.truncated, info=info)
        most = self._options.max_calls
        allowed = turn.tool_calls[: max(most - self._num_calls, 0)]
        self._num_calls += len(turn.tool_calls)
        results = [self._result(call) for call in allowed]
        if left := len(turn.tool_calls) - len(allowed):
            self._num_errors += left - 1
            results.append(("", self._error(f"at most {most} calls are allowed in an episode; {left} were not run")))
        return Step(
            [
                {"role": self._options.role, "content": self._cut(text), **({"name": name} if name else {})}
                for name, text in results
            ],
            info={"tool_errors": self._num_errors},
        )

    def _error(self, text: str) -> str:
        """Return the answer to a call that failed, and count it."""
        self._num_errors += 1
        return f"error: {text}"

    def _result(self, call: Mapping[str, Any]) -> tuple[str, str]:
        """Return the name of a called function, empty if there is none, and its result or the error as text."""
        name = str(call.get("name", ""))
        if "error" in call:
            return "", self._error(str(call["error"]))
        if name not in self._functions and name not in self._servers:  # the policy made it up: no name of a message
            known = ", ".join([*self._functions, *self._servers])
            return "", self._error(f"there is no tool {shorten(name)}; there are {known}")
        try:
            arguments = _plain(call["arguments"])
        except (TypeError, ValueError, RecursionError) as error:
            return name, self._error(f"{name}: the arguments are no JSON: {error}")
        if name in self._servers:
            return name, self._from_server(self._servers[name], name, arguments)
        return name, self._from_function(*self._functions[name], name, arguments)

    def _from_function(
        self, function: Callable[..., object], schema: Schema, name: str, arguments: dict[str, object]
    ) -> str:
        """Return the result of a function, or its error as text."""
        try:
            inspect.signature(function).bind(**arguments)
        except TypeError as error:
            return self._error(f"{name}: {error}")
        if wrong := wrong_argument(arguments, schema["function"]["parameters"]):
            return self._error(f"{name}: {wrong}")
        allow_more(self._options.timeout_s + MARGIN_S)

        def call() -> Any:
            return finished(function(**arguments))

        try:
            return _as_text(call() if runs_inline() else self._calls.start(call, thread=self._thread).result())
        except CallTooLate:
            return self._error(f"{name} did not return within {self._options.timeout_s:g} seconds")
        except (Exception, SystemExit, CancelledError) as error:  # noqa: BLE001  the policy reads it and may try again
            return self._error(f"{name} raised {describe_error(error)}")

    def _from_server(self, server: McpServer, name: str, arguments: dict[str, object]) -> str:
        """Return the result of a server's tool, or its error as text; a server that is gone ends the episode."""
        if id(server) not in self._sessions:
            self._sessions[id(server)] = server.session()
        session, _ = self._sessions[id(server)]
        try:
            return session.call(name, arguments, self._options.timeout_s)
        except TimeoutError:
            return self._error(f"{name} did not return within {self._options.timeout_s:g} seconds")
        except ToolFailed as error:
            return self._error(f"{name}: {error}")
        except ServerGone:
            server.replace(session)
            raise

    def _cut(self, text: str) -> str:
        most = self._options.max_output
        text = text.encode(errors="replace").decode()  # without halves of characters, which no tokenizer takes
        return text if len(text) <= most else f"{text[:most]}... ({len(text)} characters, of which {most} are shown)"


def schema_of(function: object) -> dict[str, Any]:
    """Return the JSON schema of a function, from its type hints and its docstring in Google's form.

    Raises:
        ConfigError: it is no function, or its hints or docstring are incomplete.
    """
    from transformers.utils.chat_template_utils import get_json_schema

    if not callable(function):
        raise ConfigError(f"tools: {show(function)}: is not callable; give functions, or {{'mcp': ...}}")
    name = getattr(function, "__name__", repr(function))
    if unnamed := [each.name for each in _parameters(function) if each.kind in UNNAMED]:
        raise ConfigError(f"tools: '{name}': calls pass arguments by name, which {unnamed[0]} does not allow")
    try:
        schema: dict[str, object] = get_json_schema(function)
    except Exception as error:  # the library raises several kinds of its own
        raise ConfigError(
            f"tools: '{name}': {str(error).strip()}; give every argument a type hint, and describe it under `Args:` in "
            "the docstring"
        ) from error
    return schema


def _parameters(function: Any) -> list[inspect.Parameter]:
    try:
        return list(inspect.signature(function).parameters.values())
    except ValueError:  # it has no signature, which the library reports
        return []


def _plain(arguments: Mapping[str, object]) -> dict[str, Any]:
    """Return arguments as JSON has them; a policy may write sets, bytes and halves of characters."""
    text = json.dumps(arguments, ensure_ascii=False)
    text.encode()
    plain: dict[str, object] = json.loads(text)
    return plain


def _as_text(result: object) -> str:
    if isinstance(result, str):
        return result
    try:
        return json.dumps(result, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError):
        return str(result)
