"""Answers of a server with the API of OpenAI that cannot be used, and requests that are sent again."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from openai_runs import sample
from openai_stand_in import OpenAIStandIn

from rlcore.errors import ConfigError, DataError
from rlcore_engines.vllm.connection import EngineError
from rlcore_engines.vllm.openai_sampler import retry_after


@pytest.mark.parametrize(
    ("fault", "error", "words"),
    [
        ("no_choices", EngineError, "one completion was asked for, and the answer has no list of them"),
        ("none", EngineError, "the answer has 0"),
        ("twice", EngineError, "the answer has 2"),
        ("list", EngineError, "no list of them"),
        ("no_text", EngineError, "has no text.*is this a server of completions"),
        ("no_finish", EngineError, "ended with None, neither"),
        ("filtered", EngineError, "ended with 'content_filter'"),
        ("babbles", EngineError, "no JSON: '<html>'"),
        ("huge", EngineError, "1000000 characters, and at most 6 tokens.*does not keep to max_tokens"),
        ("empty", EngineError, "the completion of 'a' is empty, and ended at no EOS"),
        ("refuses", DataError, "a request is refused: status 400, it refuses"),
        ("unknown", ConfigError, "status 404.*check sampler.url.* sampler.model = 'm'"),
        ("moved", ConfigError, "status 307.*check sampler.url"),
    ],
)
def test_an_answer_that_cannot_be_used_ends_the_call(
    server: OpenAIStandIn, fault: str, error: type[Exception], words: str
) -> None:
    server.faults.extend(["", fault])
    with pytest.raises(error, match=words):
        sample(server, ("a",) * 2, concurrency=1)
    assert len(server.asked) == 2, "no repetition changes it"


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        ("busy", "status 429, it busy"), ("fails", "status 500, it fails"), ("dies", "RemoteDisconnected"),
        ("late", "no answer within 3 seconds"), ("trickles", "no answer within 3 seconds"),
        ("breaks_off", "IncompleteRead"),
    ],
)  # fmt: skip
def test_a_failure_is_repeated_as_often_as_retries_say(server: OpenAIStandIn, fault: str, words: str) -> None:
    server.faults.extend([fault] * 2)
    timeout_s = 3.0 if "within" in words else 300.0
    once = sample(server, ("cat",), timeout_s=timeout_s, retries=2).action_tokens
    assert once == sample(server, ("cat",)).action_tokens
    server.faults.extend([fault] * 100)
    with pytest.raises(EngineError, match=f"asked for 3 times without an answer; the last time: .*{words}"):
        sample(server, ("cat",), timeout_s=timeout_s, retries=2)


def test_pauses_double_and_are_at_least_those_that_the_server_asks_for(
    server: OpenAIStandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses: list[float] = []

    class Over:
        def wait(self, seconds: float) -> bool:
            pauses.append(seconds)
            return False

        def set(self) -> None:
            pass

    monkeypatch.setattr("rlcore_engines.vllm.openai_sampler.threading", SimpleNamespace(Event=Over))
    server.retry_after = "3"
    server.faults.extend(["fails", "fails", "busy", *["fails"] * 4])
    sample(server, ("a",), backoff_s=1.0, retries=7)
    assert pauses == [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0]
    pauses.clear()
    server.faults.extend(["busy"])
    sample(server, ("a",), backoff_s=1.0)
    assert pauses == [3.0]


def test_a_wait_is_a_number_of_seconds_or_a_date() -> None:
    assert [retry_after(each) for each in ("", "2.5", "-1", "soon", "Wed, 21 Oct 2015 07:28:00 GMT")] == [
        0,
        2.5,
        0,
        0,
        0,
    ]


def test_a_failed_call_waits_for_no_other_answer(server: OpenAIStandIn) -> None:
    server.faults.extend(["late"] * 3 + ["twice"])
    with pytest.raises(EngineError, match="the answer has 2"):  # the late ones come when the server is closed
        sample(server, ("a",) * 4, concurrency=4)
