"""Every prompt gets one answer, whatever the servers do meanwhile."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest
from vllm_stand_in import StandIn

from rlcore.errors import DataError
from rlcore.settings import SamplingConfig
from rlcore_engines.vllm.client import VLLMServer
from rlcore_engines.vllm.connection import EngineError
from rlcore_engines.vllm.generation import Completion, Generated
from rlcore_engines.vllm.vllm_sampler import ATTEMPTS, Dispatch

MakeServer = Callable[[], StandIn]


@pytest.fixture
def make_server() -> Iterator[MakeServer]:
    begun: list[StandIn] = []

    def make() -> StandIn:
        begun.append(StandIn())
        return begun[-1]

    yield make
    for server in begun:
        server.close()


def requests(count: int) -> list[Completion]:
    """Return requests with seeds of their own; two share each prompt."""
    return [
        Completion(prompt=(row // 2 + 1,), limit=5, seed=row, sampling=SamplingConfig(), eos=(30,))
        for row in range(count)
    ]


def ask(
    *servers: StandIn, count: int = 12, concurrency: int = 4, timeout_s: float = 20.0, recover: object = None
) -> dict[int, Generated]:
    listed = [VLLMServer(server.url, {}, 5.0) for server in servers]
    wait: Callable[[VLLMServer], None] = recover or (lambda _: None)  # type: ignore[assignment]
    dispatch = Dispatch(listed, "default", wait, concurrency, timeout_s)
    found: dict[int, Generated] = {}
    for row, answer in dispatch.answers(requests(count)):
        assert row not in found, "a row has two answers"
        found[row] = answer
    return found


def test_answers_do_not_depend_on_the_number_of_servers_and_of_requests_at_a_time(make_server: MakeServer) -> None:
    one, two = make_server(), make_server()
    whole = ask(one, concurrency=1)
    assert sorted(whole) == list(range(12))
    assert ask(one, two, concurrency=3) == whole


def test_prompts_are_dealt_by_load_and_groups_stay_together(make_server: MakeServer) -> None:
    """Rows of one prompt go to one server, which caches its states."""
    servers = make_server(), make_server()
    ask(*servers, count=16, concurrency=8)
    prompts = [{tuple(body["token_ids"]) for body in server.asked} for server in servers]
    assert [len(server.asked) for server in servers] == [8, 8]
    assert not prompts[0] & prompts[1]


@pytest.mark.parametrize("fault", ["dies", "fails", "aborted", "old"])
def test_a_row_that_was_lost_is_sampled_as_if_it_had_not_been(make_server: MakeServer, fault: str) -> None:
    server = make_server()
    whole = ask(server)
    server.faults.extend(["", fault, "", fault])
    server.asked.clear()
    assert ask(server) == whole
    assert len(server.asked) == 14


def test_a_late_answer_is_asked_again_and_not_counted_twice(make_server: MakeServer) -> None:
    server = make_server()
    whole = ask(server)
    server.faults.extend(["late"])
    assert ask(server, timeout_s=0.4) == whole


def test_a_server_that_never_answers_ends_the_call(make_server: MakeServer) -> None:
    server = make_server()
    server.faults.extend(["fails"] * 100)
    with pytest.raises(EngineError, match=f"asked for {ATTEMPTS} times without an answer.*status 500, it fails"):
        ask(server)


def test_rows_of_a_lost_server_go_to_the_others(make_server: MakeServer) -> None:
    good, bad = make_server(), make_server()
    whole = ask(good)
    bad.faults.extend(["dies"] * 100)

    def lost(server: VLLMServer) -> None:
        raise EngineError(f"{server} is gone")

    good.asked.clear()
    assert ask(good, bad, recover=lost) == whole
    assert len(good.asked) == 12


def test_the_error_of_the_last_server_is_raised(make_server: MakeServer) -> None:
    servers = make_server(), make_server()
    for server in servers:
        server.faults.extend(["dies"] * 100)

    def lost(server: VLLMServer) -> None:
        raise EngineError(f"{server.url} is gone")

    with pytest.raises(EngineError, match="is gone"):
        ask(*servers, recover=lost)


@pytest.mark.parametrize(
    ("fault", "error", "words"),
    [
        ("twice", EngineError, "one completion was asked for"),
        ("short", EngineError, "were asked for"),
        ("babbles", EngineError, "no JSON: '<html>'"),
        ("refuses", DataError, "is refused: status 400, it refuses"),
    ],
)
def test_an_answer_that_cannot_be_used_ends_the_call(
    make_server: MakeServer, fault: str, error: type[Exception], words: str
) -> None:
    server = make_server()
    server.faults.extend(["", "", fault])
    with pytest.raises(error, match=words):
        ask(server)


def test_no_thread_is_left_behind(make_server: MakeServer) -> None:
    server = make_server()
    ask(server)
    server.faults.extend(["late"] * 4)
    dispatch = Dispatch([VLLMServer(server.url, {}, 5.0)], "default", lambda _: None, 4, 20.0)
    answers = dispatch.answers(requests(4))
    server.faults.clear()
    next(answers)
    answers.close()
    assert not [thread for thread in threading.enumerate() if thread.name == "rlcore-engines"]


def test_a_connection_that_the_server_has_closed_is_opened_again(make_server: MakeServer) -> None:
    """A server closes connections that are idle for some seconds; that is no failure of the server."""
    from rlcore_engines.vllm.connection import Connection

    server = make_server()
    connection = Connection(server.url, {})
    assert connection.request("GET", "/health", timeout_s=300.0).status == 200
    assert connection._http.sock is not None
    connection._http.sock.shutdown(2)
    assert connection.request("GET", "/health", timeout_s=300.0).status == 200
    connection.close()
