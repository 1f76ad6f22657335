from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from judge_server import JudgeServer

from rlcore.errors import ConfigError, PluginError, RewardError
from rlcore_rewards.config import JudgeConfig
from rlcore_rewards.judge import NAME, Judge, ReplyCache


@pytest.fixture
def server() -> Iterator[JudgeServer]:
    server = JudgeServer()
    yield server
    server.close()


def ask(server: JudgeServer, outputs: list[str], *, judge: Judge | None = None, **options: Any) -> list[float | None]:
    """Return the rewards of outputs, each of which is judged by its number of letters out of 10."""
    judge = judge or make(server, **options)

    async def call() -> list[float | None]:
        found = await judge(outputs=outputs, prompts=["Why?"] * len(outputs), answer=["x"] * len(outputs))
        assert judge._requests is not None
        await judge._requests.close()
        return found

    return asyncio.run(call())


def make(server: JudgeServer, **options: Any) -> Judge:
    defaults = {"url": server.url, "model": "m", "rubric": "{prompt} <{output}>", "backoff_s": 0.01, "max_failed": 1.0}
    return Judge(JudgeConfig(**{**defaults, **options}))


def test_the_last_score_of_the_reply_becomes_a_number_in_0_to_1(server: JudgeServer) -> None:
    assert ask(server, ["abc", "", "abcdefghij"]) == [0.3, 0.0, 1.0]
    assert ask(server, ["abc"], low=2.0, high=4.0) == [0.5]
    assert ask(server, ["abc"], pattern=r"first Score: (\d)") == [0.1]


def test_the_request_has_the_rubric_with_prompt_output_and_columns(
    server: JudgeServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("A_KEY", "secret")
    ask(server, ["{answer}"], rubric="{prompt} {answer} <{output}> {not this}", system="Be fair.", key_env="A_KEY")
    (seen,) = server.seen
    assert seen == {
        "path": "/v1/chat/completions", "model": "m", "temperature": 0.0, "max_tokens": 256,
        "messages": [
            {"role": "system", "content": "Be fair."},
            {"role": "user", "content": "Why? x <{answer}> {not this}"},
        ],
    }  # fmt: skip
    assert server.keys == ["Bearer secret"]


def test_failures_that_may_pass_are_repeated(server: JudgeServer) -> None:
    assert ask(server, ["flaky", "busy"]) == [0.5, 0.4]
    assert server.times == {"flaky": 2, "busy": 3}


def test_the_wait_doubles(server: JudgeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    waits: list[float] = []
    sleep = asyncio.sleep

    async def at_once(delay_s: float) -> None:
        waits.append(delay_s)
        await sleep(0)

    monkeypatch.setattr("rlcore_rewards.judge.asyncio.sleep", at_once)
    ask(server, ["broken"], retries=3, backoff_s=0.05)
    assert server.times["broken"] == 4
    assert [wait for wait in waits if wait] == pytest.approx([0.05, 0.1, 0.2])


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("broken", "chat/completions answered 500 Internal Server Error: out of order, in 2 attempts"),
        ("cut", "RemoteProtocolError: Server disconnected without sending a response., in 2 attempts"),
        ("vague", "judge.pattern finds no score in the reply 'I cannot say.'"),
        ("high", "the score 99 lies outside [judge.low, judge.high] = [0, 10]"),
        ("garbled", "answered with no reply of a chat: '<html>'"),
        ("nested", f"answered with no reply of a chat: '{'[' * 120}'"),
        ("countless", """answered with no reply of a chat: '{"usage": {"total_tokens": 1e999}}'"""),
        ("half \ud800", "the question has half of a surrogate pair, which is no Unicode"),
    ],
)
def test_a_failed_judgement_is_missing_and_counted(server: JudgeServer, text: str, reason: str) -> None:
    judge = make(server, retries=1, timeout_s=300)
    assert ask(server, ["abc", text, "a"], judge=judge) == [0.3, None, 0.1]
    assert_one_failed(judge, reason)


def test_a_judgement_that_takes_too_long_is_missing_and_counted(server: JudgeServer) -> None:
    judge = make(server, retries=1, timeout_s=0.3)
    assert ask(server, ["slow"], judge=judge) == [None]
    assert_one_failed(judge, "did not answer within judge.timeout_s = 0.3, in 2 attempts")


def assert_one_failed(judge: Judge, reason: str) -> None:
    ((what, count),) = judge._tally.counts.items()
    assert what.startswith("judgements failed and are missing, such as: ")
    assert what.endswith(reason)
    assert count == 1


def test_too_many_failures_of_a_call_are_an_error(server: JudgeServer) -> None:
    assert ask(server, ["abc", "vague"], max_failed=0.5) == [0.3, None]
    with pytest.raises(RewardError) as raised:
        ask(server, ["abc", "vague"], max_failed=0.4)
    assert str(raised.value) == (
        "1 of 2 judgements failed, more than judge.max_failed = 0.4 allows: judge.pattern finds no score in the reply "
        "'I cannot say.'"
    )


def test_a_server_that_refuses_is_an_error_at_once(server: JudgeServer) -> None:
    server.refusal = (401, "bad\nkey")
    with pytest.raises(RewardError) as raised:
        ask(server, ["abc"])
    assert str(raised.value) == (
        f"the judge at {server.url}/chat/completions refuses the request for the model 'm': 401 Unauthorized: bad key; "
        "check judge.url, judge.model and the key in OPENAI_API_KEY"
    )
    assert len(server.seen) == 1


@pytest.mark.parametrize(("key", "sent"), [("sk-hidden\n", "Bearer sk-hidden"), (" ", None)])
def test_the_key_is_sent_without_white_space_around_it(
    server: JudgeServer, monkeypatch: pytest.MonkeyPatch, key: str, sent: str | None
) -> None:
    monkeypatch.setenv("A_KEY", key)
    assert ask(server, ["abc"], key_env="A_KEY") == [0.3]
    assert server.keys == [sent]


@pytest.mark.parametrize("key", ["sk-hidd\u00e9n", "sk-hidd\nen"])
def test_a_key_that_cannot_be_sent_is_an_error_that_does_not_show_it(
    server: JudgeServer, monkeypatch: pytest.MonkeyPatch, key: str
) -> None:
    monkeypatch.setenv("A_KEY", key)
    with pytest.raises(ConfigError, match=r"judge\.key_env: the key in A_KEY has characters") as raised:
        ask(server, ["abc"], key_env="A_KEY")
    assert "hidd" not in str(raised.value)


def test_a_key_that_the_server_repeats_is_in_no_error(server: JudgeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_KEY", "sk-hidden")
    server.refusal = (401, "wrong key: sk-hidden")
    with pytest.raises(RewardError, match=r"401 Unauthorized: wrong key: <hidden>;"):
        ask(server, ["abc"], key_env="A_KEY")


def test_no_server_is_an_error_that_names_the_address(server: JudgeServer) -> None:
    server.close()
    with pytest.raises(RewardError, match=r"1 of 1 judgements failed.*http://127.*ConnectError.*in 2 attempts"):
        ask(server, ["abc"], retries=1, max_failed=0.5)


def test_so_many_requests_are_sent_at_a_time(server: JudgeServer) -> None:
    server.delay_s = 0.05
    assert ask(server, ["a" * k for k in range(10)], concurrency=3) == [k / 10 for k in range(10)]
    assert server.most_running == 3


def test_equal_outputs_are_asked_once(server: JudgeServer) -> None:
    server.delay_s = 0.05
    assert ask(server, ["abc"] * 5) == [0.3] * 5
    assert len(server.seen) == 1


def test_replies_are_kept_on_disk_and_failures_are_not(server: JudgeServer, tmp_path: Path) -> None:
    assert ask(server, ["abc", "vague", "broken"], cache=str(tmp_path), retries=0) == [0.3, None, None]
    assert ask(server, ["abc", "vague", "broken", "ab"], cache=str(tmp_path), retries=0) == [0.3, None, None, 0.2]
    assert server.times == {"abc": 1, "vague": 1, "broken": 2, "ab": 1}
    rows = [json.loads(line) for line in (tmp_path / NAME).read_text().splitlines()]
    assert sorted(row["reply"][-8:] for row in rows) == ["Score: 2", "Score: 3", "not say."]
    assert ask(server, ["abc"], cache=str(tmp_path), model="other") == [0.3]
    assert server.times["abc"] == 2


def test_a_key_that_the_judge_repeats_is_neither_kept_on_disk_nor_shown(
    server: JudgeServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("A_KEY", "sk-hidden")
    server.repeats = "Bearer sk-hidden: "
    judge = make(server, key_env="A_KEY", cache=str(tmp_path))
    assert ask(server, ["vague"], judge=judge) == [None]
    assert json.loads((tmp_path / NAME).read_text())["reply"] == "Bearer <hidden>: I cannot say."
    assert "sk-hidden" not in repr(judge._tally.counts)


def test_a_line_that_a_crash_cut_off_is_asked_again(tmp_path: Path) -> None:
    (tmp_path / NAME).write_text('{"key": "a", "reply": "1"}\n{"key": "b", "re')
    cache = ReplyCache(tmp_path)
    assert (cache.get("a"), cache.get("b")) == ("1", None)
    cache.put("c", "3")
    cache.close()
    again = ReplyCache(tmp_path)
    assert [again.get(key) for key in "abc"] == ["1", None, "3"]
    again.close()


class Run:
    """The parts of a run that the reward uses."""

    def __init__(self, folder: Path) -> None:
        self.dir, self.reasons, self.kept = folder, list[str](), 0

    def keep_folder(self) -> None:
        self.kept += 1

    def request_stop(self, reason: str) -> None:
        self.reasons.append(reason)


@pytest.mark.parametrize(
    ("options", "num"), [({"max_requests": 3}, 3), ({"max_total_tokens": 25}, 3)]
)  # each reply counts 10 tokens: after three of them 30 are spent
def test_a_spent_budget_ends_the_run_after_the_step(
    server: JudgeServer, tmp_path: Path, options: dict[str, int], num: int
) -> None:
    judge, run = make(server, concurrency=1, max_failed=0.0, **options), Run(tmp_path)
    judge.open(run)  # type: ignore[arg-type]
    rewards = ask(server, ["a" * k for k in range(5)], judge=judge)
    assert [reward is None for reward in rewards] == [False] * num + [True] * (5 - num)
    ((name, most),) = options.items()
    assert run.reasons == [f"judge.{name} = {most} is spent"]
    assert len(server.seen) == num
    assert run.kept == num
    assert (tmp_path / NAME).exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"model": ""}, "judge.model is empty: name the model that judges, as the server calls it"),
        ({"rubric": "Rate it."}, "judge.rubric = 'Rate it.': must contain {output}, where the text to judge stands"),
        (
            {"rubric": "{output} {messages}"},
            "judge.rubric: {messages} is no placeholder: use {prompt}, {output} or a",
        ),
        ({"key_env": "sk_live_1a2b3c4d"}, "judge.key_env: is no name of an environment variable"),
        ({"low": 10.0}, "judge.low = 10: must be below judge.high = 10"),
        ({"url": "localhost"}, "judge.url = 'localhost': must begin with http:// or https://"),
        ({"url": "http://me:secret@localhost:8000/v1"}, "judge.url for localhost holds a user name or a password"),
        ({"url": "http://localhost:99999/v1"}, "judge.url = 'http://localhost:99999/v1': is no address of a server"),
        ({"pattern": r"\d+"}, "judge.pattern = '\\\\d+': has 0 groups; the score is one"),
    ],
)
def test_options_that_cannot_work_are_named(server: JudgeServer, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as raised:
        make(server, **options)
    assert str(raised.value).startswith(message)


def test_a_missing_library_names_what_installs_it(server: JudgeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "httpx", None)
    with pytest.raises(PluginError, match=r"needs httpx, .*: pip install 'rlcore-rewards\[judge\]'"):
        make(server)
