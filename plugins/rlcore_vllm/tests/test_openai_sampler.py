"""Completions of a server with the API of OpenAI: what is asked, what is refused, and what becomes of answers."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from openai_stand_in import EXTRA, UNKNOWN, OpenAIStandIn, letters

import rlcore
from rlcore.config import structure
from rlcore.errors import ConfigError, DataError, RLCoreError
from rlcore.settings import SamplingConfig
from rlcore.types import Prompt, Trajectories
from rlcore_testing.small import EOS, LETTERS, PROMPTS, SAMPLES, make_gpt2, make_tokenizer, toy_reward
from rlcore_transformers.models.causal import build_causal_lm
from rlcore_transformers.models.model_options import CausalLMConfig
from rlcore_vllm.errors import EngineError
from rlcore_vllm.openai_config import OpenAIConfig
from rlcore_vllm.openai_sampler import OpenAISampler
from rlcore_vllm.text_client import retry_after

RFT = {"name": "rft", "generations": 4, "improve_steps": 1, "optimizer": {"lr": 1e-2}}
KEY = "sk-do-not-show-me"


@pytest.fixture
def server() -> Iterator[OpenAIStandIn]:
    stand_in = OpenAIStandIn()
    yield stand_in
    stand_in.close()


def make_policy() -> Any:
    return build_causal_lm(make_gpt2(), CausalLMConfig(), tokenizer=make_tokenizer())


def make_prompts(*texts: str) -> list[Prompt]:
    return [Prompt(text, tuple(LETTERS.index(letter) for letter in text)) for text in texts]


def make_sampler(server: OpenAIStandIn, **options: Any) -> OpenAISampler:
    given = {"url": server.url, "model": "m", "prompts": "text", "backoff_s": 0.0, "timeout_s": 20.0, **options}
    return OpenAISampler(OpenAIConfig(**given))


def sample(server: OpenAIStandIn, texts: tuple[str, ...] = PROMPTS, gen: Any = None, **options: Any) -> Trajectories:
    sampling = SamplingConfig(**{"max_new_tokens": 6, **(gen or {})})
    return make_sampler(server, **options)(
        make_policy(), make_prompts(*texts), sampling, row_seeds=list(range(len(texts)))
    )


def train(server: OpenAIStandIn, folder: Path, **options: Any) -> Any:
    given: dict[str, Any] = {
        "trainer": RFT, "prompts": list(PROMPTS), "reward_fn": toy_reward, "gen": {"max_new_tokens": 5}, "loggers": [],
        "sampler": {"name": "openai", "url": server.url, "model": "m", "backoff_s": 0.0},
    }  # fmt: skip
    run = {"root": str(folder), "name": "run", "steps": 2, "report": False, "rollouts": "all", **options.pop("run", {})}
    return rlcore.train(make_gpt2(), tokenizer=make_tokenizer(), run=run, **{**given, **options})


def rollouts(result: Any) -> list[tuple[Any, ...]]:
    lines = (result.run_dir / "rollouts.jsonl").read_text().splitlines()
    return [(row["step"], row["prompt"], row["output"], row["reward"]) for row in map(json.loads, lines)]


def test_a_request_states_the_options_and_no_more(server: OpenAIStandIn) -> None:
    gen = {"temperature": 0.7, "top_p": 0.9, "stop_sequences": ("q",)}
    sample(server, ("cat",), gen)
    assert server.asked == [
        {"model": "m", "prompt": "cat", "max_tokens": 6, "temperature": 0.7, "top_p": 0.9, "seed": 0, "stop": ["q"]}
    ]
    server.asked.clear()
    sample(server, ("cat",), {"temperature": 0.0})
    assert server.asked == [{"model": "m", "prompt": "cat", "max_tokens": 6, "temperature": 0.0, "top_p": 1.0}]


def test_min_p_and_the_repetition_penalty_are_sent_to_a_server_that_accepts_them(server: OpenAIStandIn) -> None:
    server.fields |= {"min_p", "repetition_penalty"}
    sample(server, ("cat",), extra=("min_p", "repetition_penalty"), min_p=0.1, repetition_penalty=1.2)
    assert (server.asked[0]["min_p"], server.asked[0]["repetition_penalty"]) == (0.1, 1.2)


def test_seeds_have_31_bits(server: OpenAIStandIn) -> None:
    make_sampler(server)(make_policy(), make_prompts("a"), SamplingConfig(max_new_tokens=2), row_seeds=[2**62 + 5])
    assert server.asked[0]["seed"] == (2**62 + 5) % (2**31 - 1)


def test_text_becomes_the_tokens_that_were_sampled_where_tokens_are_letters(server: OpenAIStandIn) -> None:
    """With one token per letter, tokenising again loses nothing; the server's own tokens are the expected ones."""
    batch = sample(server, PROMPTS * 4)
    sampled = [server.sample([LETTERS.index(each) for each in body["prompt"]], body, [EOS])[0] for body in server.asked]
    visible = [[token for token in row if token < UNKNOWN or token == EOS] for row in sampled]
    assert sorted(batch.action_tokens) == sorted(visible)
    ended = [row[-1] == EOS for row in batch.action_tokens]
    assert True in ended
    assert batch.ended.tolist() == ended
    assert batch.columns == {}


def test_a_row_follows_from_its_seed_whatever_the_order_of_answers(server: OpenAIStandIn) -> None:
    whole = sample(server).action_tokens
    assert sample(server, concurrency=1).action_tokens == whole
    server.faults.extend(["busy", "", "dies", "fails", "breaks_off"])
    assert sample(server).action_tokens == whole


def test_no_more_requests_than_concurrency_are_open(server: OpenAIStandIn) -> None:
    server.pause_s = 0.02
    sample(server, PROMPTS * 2, concurrency=3)
    assert server.most_at_once == 3


def test_parts_of_batch_size_are_reported(server: OpenAIStandIn) -> None:
    parts: list[tuple[list[int], Trajectories]] = []
    batch = make_sampler(server)(
        make_policy(), make_prompts(*PROMPTS), SamplingConfig(max_new_tokens=4, batch_size=3),
        row_seeds=list(range(8)), on_batch=lambda rows, part: parts.append((rows, part)),
    )  # fmt: skip
    assert [len(rows) for rows, _ in parts] == [3, 3, 2]
    for rows, part in parts:
        assert part.action_tokens == [batch.action_tokens[row] for row in rows]


@pytest.mark.parametrize("keeps_stop", [False, True])
@pytest.mark.parametrize("states_reason", [False, True])
def test_a_row_ends_with_its_stop_sequence(server: OpenAIStandIn, *, keeps_stop: bool, states_reason: bool) -> None:
    server.keeps_stop, server.states_reason = keeps_stop, states_reason
    free = sample(server, ("ab",) * 8, {"max_new_tokens": 12})
    stop = letters(free.action_tokens[0])[2:4]
    cut = sample(server, ("ab",) * 8, {"max_new_tokens": 12, "stop_sequences": (stop,)})
    for whole, row, ended in zip(free.action_tokens, cut.action_tokens, cut.ended.tolist(), strict=True):
        end = letters(whole).find(stop)
        if end >= 0:
            assert letters(row) == letters(whole)[: end + len(stop)]
            assert ended
        elif whole[-1] != EOS:
            assert (row, ended) == (whole, False)
        elif states_reason:
            assert (row, ended) == (whole, True)
        else:  # the server does not state that it was EOS
            assert (letters(row), ended) == (letters(whole) + stop, True)


@pytest.mark.parametrize(
    ("takes_tokens", "echoes", "form"), [(True, True, list), (True, False, str), (False, True, str)]
)
def test_token_ids_are_sent_to_a_server_that_echoes_them(
    server: OpenAIStandIn, *, takes_tokens: bool, echoes: bool, form: type
) -> None:
    server.takes_tokens = takes_tokens
    server.fields |= {"echo"} if echoes else set()
    sampler, policy = make_sampler(server, prompts="auto"), make_policy()
    for _ in range(2):
        sampler(policy, make_prompts("cat", "o"), SamplingConfig(max_new_tokens=4), row_seeds=[1, 2])
    assert {type(body["prompt"]) for body in server.completions()} == {form}
    assert len(server.asked) == 5  # one probe


def test_token_ids_are_not_sent_to_a_server_with_another_vocabulary(
    server: OpenAIStandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.takes_tokens = True
    server.fields |= {"echo"}
    monkeypatch.setattr("openai_stand_in.LETTERS", LETTERS[::-1])
    sample(server, ("cat",), prompts="auto")
    assert server.completions()[0]["prompt"] == "cat"


def test_returned_token_ids_are_taken_as_they_are(server: OpenAIStandIn) -> None:
    server.fields |= EXTRA
    extra = ("return_token_ids", "stop_token_ids", "min_tokens", "top_k")
    batch = sample(
        server, PROMPTS, {"eos_token_ids": (3, 4, 5), "min_new_tokens": 2, "top_k": 9, "max_new_tokens": 9}, extra=extra
    )
    sampled = {
        body["prompt"]: server.sample([LETTERS.index(each) for each in body["prompt"]], body, [3, 4, 5])[0]
        for body in server.asked
    }
    assert batch.action_tokens == [sampled[text] for text in PROMPTS]
    assert batch.ended.tolist() == [row[-1] in (3, 4, 5) for row in batch.action_tokens]
    assert server.asked[0]["ignore_eos"] is True
    server.faults.extend(["other_tokens"])
    with pytest.raises(EngineError, match=r"are not those of the text .* has another one"):
        sample(server, ("cat",), extra=extra)
    server.faults.extend(["no_tokens"])
    with pytest.raises(EngineError, match=r"no token ids: .* remove return_token_ids"):
        sample(server, ("cat",), extra=extra)


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
        ("late", "no answer within 0.3 seconds"), ("trickles", "no answer within 0.3 seconds"),
        ("breaks_off", "IncompleteRead"),
    ],
)  # fmt: skip
def test_a_failure_is_repeated_as_often_as_retries_say(server: OpenAIStandIn, fault: str, words: str) -> None:
    server.faults.extend([fault] * 2)
    once = sample(server, ("cat",), timeout_s=0.3, retries=2).action_tokens
    assert once == sample(server, ("cat",)).action_tokens
    server.faults.extend([fault] * 100)
    with pytest.raises(EngineError, match=f"asked for 3 times without an answer; the last time: .*{words}"):
        sample(server, ("cat",), timeout_s=0.3, retries=2)


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

    monkeypatch.setattr("rlcore_vllm.text_client.threading", SimpleNamespace(Event=Over))
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
    import time

    server.faults.extend(["late"] * 3 + ["twice"])
    begun = time.monotonic()
    with pytest.raises(EngineError, match="the answer has 2"):
        sample(server, ("a",) * 4, concurrency=4)
    assert time.monotonic() - begun < 0.9


def test_an_empty_text_that_the_server_ended_is_eos(server: OpenAIStandIn) -> None:
    server.faults.extend(["only_eos"])
    batch = sample(server, ("cat",))
    assert batch.action_tokens == [[EOS]]
    assert batch.ended.tolist() == [True]


def test_a_text_of_more_tokens_than_the_limit_is_cut(server: OpenAIStandIn, caplog: pytest.LogCaptureFixture) -> None:
    server.faults.extend(["longer"])
    batch = sample(server, ("cat",))
    assert batch.action_tokens == [[1] * 6]
    assert batch.ended.tolist() == [False]


@pytest.mark.parametrize(
    ("gen", "words"),
    [
        ({"beta": 1.0}, "gen.beta = 1: a server has no Q-heads"),
        ({"top_k": 5}, "gen.top_k = 5: .* add 'top_k' to sampler.extra"),
        ({"min_new_tokens": 2}, "gen.min_new_tokens = 2: .* add 'min_tokens'"),
        ({"eos_token_ids": [3]}, r"gen.eos_token_ids = \(3,\): .* add 'stop_token_ids'"),
        ({"stop_sequences": [""]}, "gen.stop_sequences: ''"),
    ],
)
def test_options_that_the_api_lacks_are_refused_before_the_first_step(
    server: OpenAIStandIn, gen: dict[str, Any], words: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=words):
        train(server, tmp_path, gen={"max_new_tokens": 5, **gen})
    with pytest.raises(ConfigError, match=words.replace("gen.", "eval.gen.", 1)):
        train(server, tmp_path, eval={"gen": {name: [value] for name, value in gen.items()}})
    assert not server.asked
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"logit_mask": [[True] * 32] * 32}, "logit_mask: sampler .* takes none"),
        ({"sampler": {"name": "openai", "url": "http://127.0.0.1:1/v1"}}, "set sampler.model"),
        ({"sampler": {"name": "openai", "model": "m"}}, "set sampler.url"),
    ],
)
def test_what_no_server_can_do_is_refused(
    server: OpenAIStandIn, options: dict[str, Any], words: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match=words):
        train(server, tmp_path, **options)


def test_what_the_server_refuses_is_refused_before_the_first_step(server: OpenAIStandIn, tmp_path: Path) -> None:
    own = {"name": "openai", "url": server.url, "model": "m"}
    with pytest.raises(ConfigError, match=r"options of gen: status 400, unknown fields \['top_k'\]; .* sampler.extra"):
        train(server, tmp_path, sampler={**own, "extra": ["top_k"]}, gen={"max_new_tokens": 5, "top_k": 3})
    with pytest.raises(ConfigError, match=r"token ids as its prompt: status 400.*set sampler.prompts to text"):
        train(server, tmp_path, sampler={**own, "prompts": "tokens"})
    with pytest.raises(ConfigError, match=r"status 404.*check sampler.url"):
        train(server, tmp_path, sampler={**own, "url": server.url.removesuffix("/v1")})
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("name", ["ppo", "grpo", "reinforce"])
def test_trainers_that_need_samples_of_the_policy_are_refused(server: OpenAIStandIn, name: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"trainer '{name}' learns from samples of the policy.*off_policy"):
        train(server, tmp_path, trainer={"name": name, "rollouts": 8})
    assert not server.asked


def test_imitation_of_the_best_samples_of_a_server_resumes_exactly(server: OpenAIStandIn, tmp_path: Path) -> None:
    whole = train(server, tmp_path / "whole")
    rows = rollouts(whole)
    assert len(rows) >= 2 * 4 * len(PROMPTS)
    train(server, tmp_path / "parts", run={"steps": 1})
    assert rollouts(train(server, tmp_path / "parts", run={"steps": 2, "resume": "auto"})) == rows


def test_a_student_is_distilled_on_completions_of_a_server(server: OpenAIStandIn, tmp_path: Path) -> None:
    """The teacher, a model of the run, gives the probabilities; the outputs of both steps are the server's."""
    teacher = make_gpt2()
    teacher.save_pretrained(tmp_path / "teacher")
    make_tokenizer().save_pretrained(tmp_path / "teacher")
    trainer = {"name": "distill_prompts", "teacher": str(tmp_path / "teacher"), "batch_size": len(PROMPTS)}
    result = train(server, tmp_path, trainer=trainer, eval={"at_end": False})
    answered = [(body["prompt"], server.choice(body)["text"]) for body in server.completions()]
    assert len(answered) == 2 * len(PROMPTS)
    assert sorted((prompt, output) for _, prompt, output, _ in rollouts(result)) == sorted(answered)


def test_a_trainer_that_learns_from_samples_evaluates_with_a_server(server: OpenAIStandIn, tmp_path: Path) -> None:
    result = train(
        server, tmp_path, trainer={"name": "sft"}, samples=list(SAMPLES), prompts=None, eval_prompts=list(PROMPTS)
    )
    assert {body["prompt"] for body in server.completions()} == set(PROMPTS)
    assert "eval/reward/mean" in result.metrics


def test_two_warnings_state_once_whose_completions_they_are(
    server: OpenAIStandIn, tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    train(server, tmp_path)
    shown = capsys.readouterr()
    text = shown.out + shown.err + caplog.text
    assert text.count("do not follow the policy's weights") == 1
    assert text.count("tokenised again") == 1


def test_the_key_is_read_from_the_environment_and_never_shown(
    server: OpenAIStandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.key = KEY
    own = {"name": "openai", "url": server.url, "model": "m"}
    with pytest.raises(ConfigError, match=r"status 401.*no key is sent: set sampler.key_env"):
        train(server, tmp_path / "none", sampler=own)
    with pytest.raises(ConfigError, match=r"sampler.key_env = 'MY_KEY': this environment variable is not set"):
        train(server, tmp_path / "unset", sampler={**own, "key_env": "MY_KEY"})
    monkeypatch.setenv("MY_KEY", f"{KEY}\n")
    result = train(server, tmp_path / "right", sampler={**own, "key_env": "MY_KEY"})
    for file in result.run_dir.rglob("*"):
        assert not file.is_file() or KEY.encode() not in file.read_bytes(), file
    server.key = "another"
    with pytest.raises(ConfigError, match=r"Bearer \(the key\); the key in MY_KEY") as caught:
        train(server, tmp_path / "wrong", sampler={**own, "key_env": "MY_KEY"})
    assert KEY not in str(caught.value)
    monkeypatch.setenv("MY_KEY", "two\nlines")
    with pytest.raises(ConfigError, match="a value that is no key"):
        train(server, tmp_path / "lines", sampler={**own, "key_env": "MY_KEY"})


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"key_env": KEY}, "key_env: is no name of an environment variable"),
        ({"url": f"http://me:{KEY}@host/v1"}, "url: holds a user name or a password"),
        ({"url": f"http://host/v1?key={KEY}"}, "url = 'http://host/v1'"),
        ({"url": "host:8000"}, "must be an http"),
        ({"url": "http://host:port/v1"}, "url: is no address"),
        ({"extra": ["logprobs"]}, "extra"),
        ({"concurrency": 0}, "concurrency"),
        ({"min_p": 0.1}, r"min_p = 0\.1: the API of OpenAI has no such option; .* add 'min_p' to sampler\.extra"),
        ({"repetition_penalty": 1.2, "extra": ["min_p"]}, r"repetition_penalty = 1\.2: .* add 'repetition_penalty'"),
        ({"logit_bias": {3: 1}}, "logit_bias: tokens are those of the policy's tokenizer"),
        ({"forbidden_tokens": ["a"]}, "forbidden_tokens: tokens are those of the policy's tokenizer"),
    ],
)
def test_options_of_another_form_are_refused_without_showing_a_key(options: dict[str, Any], words: str) -> None:
    with pytest.raises(RLCoreError, match=words) as caught:
        structure(OpenAIConfig, {"url": "http://host/v1", "model": "m", **options}, where="sampler")
    assert KEY not in str(caught.value)
