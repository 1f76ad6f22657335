"""Runs with a server that has the API of OpenAI: what is refused before the first step, resume, and keys."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest
from openai_runs import rollouts, train
from openai_stand_in import OpenAIStandIn

from rlcore.config import structure
from rlcore.errors import ConfigError, RLCoreError
from rlcore_engines.vllm.config import OpenAIConfig
from rlcore_testing.small import PROMPTS, SAMPLES, make_gpt2, make_tokenizer

KEY = "sk-do-not-show-me"


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


@pytest.mark.slow
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


@pytest.mark.slow
def test_two_warnings_state_once_whose_completions_they_are(
    server: OpenAIStandIn, tmp_path: Path, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    train(server, tmp_path)
    shown = capsys.readouterr()
    text = shown.out + shown.err + caplog.text
    assert text.count("do not follow the policy's weights") == 1
    assert text.count("tokenised again") == 1


@pytest.mark.slow
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
    with pytest.raises(ConfigError, match=r"Bearer <hidden>; the key in MY_KEY") as caught:
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
