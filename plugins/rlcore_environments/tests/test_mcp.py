"""Tools of a real MCP server, which a test starts as a program or reaches over HTTP."""

from __future__ import annotations

import os
import pickle
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from env_games import make_player
from mcp_calls import double, entry, say

import rlcore
from rlcore.errors import ConfigError
from rlcore.protocols import Turn
from rlcore_environments.calls import Calls
from rlcore_environments.mcp_tools import ServerGone
from rlcore_environments.options import ToolOptions
from rlcore_environments.process import isolated_factory
from rlcore_environments.tools import Tools
from rlcore_testing.small import make_gpt2, make_tokenizer


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"


@pytest.fixture(scope="module")
def listening() -> Iterator[str]:
    """Return the address of the server of the tests over HTTP, in a thread."""
    import mcp_server
    import uvicorn

    server = uvicorn.Server(uvicorn.Config(mcp_server.server.streamable_http_app(), port=0, log_level="critical"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        time.sleep(0.02)
    yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}/mcp"
    server.should_exit = True
    thread.join(300)


@pytest.fixture(scope="module")
def tools() -> Iterator[Tools]:
    found = Tools(ToolOptions(functions=[double, entry()], timeout_s=300.0, max_output=200))
    yield found
    found.shutdown()


@pytest.mark.slow
def test_schemas_are_those_of_the_server(tools: Tools) -> None:
    by_name = {tool["function"]["name"]: tool["function"] for tool in tools.tools}
    assert list(by_name) == ["double", "add", "note", "refuse", "wait", "draw", "die"]
    assert by_name["add"]["description"] == "Add two numbers."
    parameters = by_name["add"]["parameters"]
    assert {name: each["type"] for name, each in parameters["properties"].items()} == {"a": "integer", "b": "integer"}
    assert parameters["required"] == ["a", "b"]


@pytest.mark.slow
def test_results_and_errors_of_a_server_are_texts_for_the_policy(tools: Tools) -> None:
    episode = tools.make()
    try:
        found = say(
            episode, ("add", {"a": 17, "b": 23}), ("double", {"number": 4}), ("refuse", {"reason": "no such door"}),
            ("add", {"a": "x"}), ("draw", {}), ("subtract", {}),
        )  # fmt: skip
    finally:
        episode.close()
    assert found[:2] == ["40", "8"]
    assert found[2].startswith("error: refuse: ")
    assert "no such door" in found[2]
    assert found[3].startswith("error: add: ")
    assert "b" in found[3]
    assert found[4] == "[image]"
    assert found[5] == "error: there is no tool 'subtract'; there are double, add, note, refuse, wait, draw, die"


@pytest.mark.slow
def test_each_episode_has_a_server_of_its_own_that_ends_with_it(tools: Tools) -> None:
    first, second = tools.make(), tools.make()
    noted = [
        say(first, ("note", {"text": "a"})),
        say(first, ("note", {"text": "b"})),
        say(second, ("note", {"text": "c"})),
    ]
    pids = [int(text.partition(":")[0]) for (text,) in noted]
    assert [text.partition(": ")[2] for (text,) in noted] == ["a", "a b", "c"]
    assert pids[0] == pids[1] != pids[2]
    first.close()
    assert not is_running(pids[0])
    assert is_running(pids[2])
    second.close()
    assert not is_running(pids[2])


def test_arguments_that_are_no_json_are_errors_for_the_policy_and_the_server_goes_on(listening: str) -> None:
    found = Tools(ToolOptions(functions=[{"mcp": {"url": listening}}, double], timeout_s=300.0))
    episode = found.make()
    for name, argument in (("add", "a"), ("double", "number")):
        for value, error in (
            (b"x", "bytes is not JSON"),
            ({1}, "set is not JSON"),
            ("\ud800", "surrogates not allowed"),
        ):
            (text,) = say(episode, (name, {argument: value}))
            assert text.startswith(f"error: {name}: the arguments are no JSON: ")
            assert error in text
    assert say(episode, ("add", {"a": 1, "b": 2}), ("double", {"number": 4})) == ["3", "8"]
    episode.close()
    found.shutdown()


def test_episodes_that_call_no_tool_start_no_server(tools: Tools) -> None:
    episode = tools.make()
    assert episode.step(Turn("3", 0)).done
    assert not episode._sessions
    episode.close()


def test_a_call_that_takes_too_long_is_an_error_and_the_next_one_works(listening: str) -> None:
    found = Tools(ToolOptions(functions=[{"mcp": {"url": listening}}], timeout_s=5.0))
    episode = found.make()
    assert say(episode, ("wait", {"seconds": 20.0})) == ["error: wait did not return within 5 seconds"]
    assert say(episode, ("add", {"a": 1, "b": 2})) == ["3"]
    episode.close()
    found.shutdown()


@pytest.mark.slow
def test_a_shared_server_ends_with_the_run_and_is_replaced_when_it_dies() -> None:
    found = Tools(ToolOptions(functions=[entry(session="run", only=["note", "die"])], timeout_s=300.0))
    assert [tool["function"]["name"] for tool in found.tools] == ["note", "die"]
    first, second = found.make(), found.make()
    (one,), (two,) = say(first, ("note", {"text": "a"})), say(second, ("note", {"text": "b"}))
    assert (one.partition(": ")[2], two.partition(": ")[2]) == ("a", "a b")
    with pytest.raises(
        ServerGone, match=r"the MCP server '.*mcp_server\.py' has ended; its last output: .*out of luck"
    ):
        say(first, ("die", {}))
    (text,) = say(found.make(), ("note", {"text": "c"}))
    assert text.partition(": ")[2] == "c"
    pid = int(text.partition(":")[0])
    found.shutdown()
    assert not is_running(pid)


def test_tools_of_a_server_can_be_sent_to_another_process(listening: str) -> None:
    found = Tools(ToolOptions(functions=[{"mcp": {"url": listening, "session": "run"}}]))
    for each in (found, pickle.loads(pickle.dumps(found))):
        assert say(each.make(), ("add", {"a": 2, "b": 3})) == ["5"]
        each.shutdown()


@pytest.mark.slow
def test_servers_of_tools_in_a_process_have_their_time_and_end_with_their_episodes(tools: Tools) -> None:
    """Starting a server, and ending it, may take longer than a call of the environment."""
    factory = isolated_factory(tools, None, one_each=False, timeout_s=1.0)
    call = {"name": "note", "arguments": {"text": "x"}}
    try:
        environment: Any = factory.make()
        environment.reset({}, seed=0)
        found = Calls(1, 1.0).start(environment.step, Turn("", 0, tool_calls=[call])).result()
        pid = int(found["messages"][0]["content"].partition(":")[0])
        assert is_running(pid)
        environment.close()
        assert not is_running(pid)
    finally:
        factory.shutdown()  # type: ignore[misc]


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"mcp": {}}, r"functions\[0\]\.mcp: give one of `command`, a program to start, and `url`, an address"),
        ({"mcp": {"command": "a", "url": "b"}}, "give one of `command`"),
        ({"mcp": {"comand": "a"}}, r"functions\[0\]\.mcp\.comand: .*command"),
        ({"mpc": {}}, r"functions\[0\]: .*give a function, or \{mcp: \{command: \.\.\., args: \[\.\.\.\]\}\}"),
        ({"mcp": {"command": "/no/such"}}, r"functions\[0\]\.mcp: the MCP server '/no/such' cannot be reached: "),
        (
            {"mcp": {"command": sys.executable, "args": ["-c", "raise SystemExit('no luck')"]}},
            r"the MCP server '.*' cannot be reached: .*; its last output: 'no luck'",
        ),
    ],
)
def test_a_server_that_cannot_be_used_is_refused(given: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Tools(ToolOptions(functions=[given]))


def test_names_that_a_server_does_not_have_and_names_of_two_tools_are_refused(listening: str) -> None:
    only = {"mcp": {"url": listening, "only": ["add"]}}
    with pytest.raises(ConfigError, match="two tools are called 'add', so that a call of it is ambiguous"):
        Tools(ToolOptions(functions=[only, only]))
    with pytest.raises(ConfigError, match=r"\[0\]\.mcp\.only: there is no tool 'divide'; there are add, note, refuse"):
        Tools(ToolOptions(functions=[{"mcp": {"url": listening, "only": ["add", "divide"]}}]))


def test_the_package_is_named_if_it_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"need the package mcp: pip install 'rlcore-environments\[mcp\]'"):
        Tools(ToolOptions(functions=[entry()]))


def test_a_server_is_reached_over_http(listening: str) -> None:
    found = Tools(ToolOptions(functions=[{"mcp": {"url": listening}}]))
    episode = found.make()
    assert say(episode, ("add", {"a": 3, "b": 4})) == ["7"]
    episode.close()
    nobody = listening.replace("/mcp", "/none")
    with pytest.raises(ConfigError, match=rf"functions\[0\]\.mcp: the MCP server '{nobody}' cannot be reached: "):
        Tools(ToolOptions(functions=[{"mcp": {"url": nobody}}]))


@pytest.mark.slow
def test_a_shared_server_ends_with_the_player_of_the_run() -> None:
    player = make_player(Tools(ToolOptions(functions=[entry(session="run")])))
    episode: Any = player.factory.make()
    (result,) = say(episode, ("note", {"text": "hi"}))
    pid = int(result.partition(":")[0])
    episode.close()
    assert is_running(pid)
    player.close()
    assert not is_running(pid)


def test_tools_of_a_server_are_passed_to_train(listening: str, tmp_path: Path) -> None:
    tokenizer = make_tokenizer()
    result = rlcore.train(
        make_gpt2(), trainer={"name": "reinforce", "rollouts": 4}, tools=[double, {"mcp": {"url": listening}}],
        prompts=["ab"] * 4,
        reward_fn=lambda outputs: [1.0] * len(outputs), gen={"max_new_tokens": 2}, loggers=[], tokenizer=tokenizer,
        run={"root": str(tmp_path), "name": "run", "steps": 1, "report": False}, eval={"at_end": False},
    )  # fmt: skip
    assert result.metrics["episode/tool_calls"] == 0.0
    assert listening in (result.run_dir / "config.yaml").read_text()
    with pytest.raises(ConfigError, match="tools: 3: is not callable; give functions, or"):
        rlcore.train(make_gpt2(), trainer="reinforce", tools=[3], prompts=["ab"], tokenizer=tokenizer)
