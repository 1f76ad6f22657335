"""Servers, addresses, policies and options that a run with vLLM refuses."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
from small_sampler import PROMPTS, SAMPLING, SEEDS, make_policy, sampler_of
from vllm_stand_in import StandIn

from rlcore.errors import ConfigError
from rlcore_engines.vllm import client
from rlcore_engines.vllm.config import VLLMConfig
from rlcore_engines.vllm.connection import EngineError
from rlcore_engines.vllm.vllm_sampler import VLLMSampler
from rlcore_testing.small import make_t5, make_tokenizer
from rlcore_transformers.models.causal import build_seq2seq_lm
from rlcore_transformers.models.model_options import CausalLMConfig


def test_a_policy_that_vllm_does_not_serve_is_refused(stand_in: StandIn, tmp_path: Path) -> None:
    policy = build_seq2seq_lm(make_t5(), CausalLMConfig(), tokenizer=make_tokenizer())
    with pytest.raises(ConfigError, match="vLLM has no encoder-decoder models"):
        sampler_of(stand_in, tmp_path)(policy, PROMPTS, SAMPLING, row_seeds=SEEDS)


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("info", {"logprobs_mode": "raw_logprobs"}, "its log-probs are raw_logprobs, not those it samples from"),
        ("transfer", "nccl", "its weight transfer is nccl, not rlcore"),
        ("has_scale_out", False, r"it has no /inference/v1/generate \(status 403, disabled\)"),
    ],
)
def test_a_server_that_lacks_an_option_is_refused_with_the_command(
    name: str, value: Any, words: str, stand_in: StandIn, tmp_path: Path
) -> None:
    setattr(stand_in, name, value)
    with pytest.raises(ConfigError, match=f"{words}; start it with vllm serve MODEL --enable-scale-out"):
        sampler_of(stand_in, tmp_path)(make_policy(), PROMPTS, SAMPLING, row_seeds=SEEDS)


def test_a_server_that_asks_for_a_key_is_an_error_that_names_the_option(
    stand_in: StandIn, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    get = stand_in.get

    def guarded(path: str) -> tuple[int, Any]:
        return (401, {"error": "Unauthorized"}) if path.startswith("/inference") else get(path)

    monkeypatch.setattr(stand_in, "get", guarded)
    with pytest.raises(ConfigError, match=r"status 401, Unauthorized: it was started with a key .*set sampler.headers"):
        sampler_of(stand_in, tmp_path)(make_policy(), PROMPTS, SAMPLING, row_seeds=SEEDS)


def test_a_context_that_is_too_short_is_refused(stand_in: StandIn, tmp_path: Path) -> None:
    stand_in.max_model_len = 10
    with pytest.raises(ConfigError, match=r"has 10 tokens, and a prompt with its new tokens has 11"):
        sampler_of(stand_in, tmp_path)(make_policy(), PROMPTS, SAMPLING, row_seeds=SEEDS)


def test_a_url_without_a_server_is_an_error_in_words(tmp_path: Path) -> None:
    sampler = VLLMSampler(VLLMConfig(url="http://127.0.0.1:1", start_timeout_s=0.3, weights_dir=str(tmp_path)))
    with pytest.raises(EngineError, match=r"no vLLM server answers within 0\.3 seconds.*The last answer: .*refused"):
        sampler(make_policy(), PROMPTS, SAMPLING, row_seeds=SEEDS)


def test_a_path_without_a_server_is_an_error_with_its_answer(
    stand_in: StandIn, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "PATIENCE_S", 0.1)
    sampler = VLLMSampler(VLLMConfig(url=f"{stand_in.url}/v1/", start_timeout_s=0.3, weights_dir=str(tmp_path)))
    with pytest.raises(EngineError, match=r"/v1: no vLLM server .* The last answer: /health: status 404, Not Found"):
        sampler(make_policy(), PROMPTS, SAMPLING, row_seeds=SEEDS)
    assert capsys.readouterr().err.count("waiting for a vLLM server") == 1


def test_a_slash_at_the_end_of_a_url_is_left_out(stand_in: StandIn, tmp_path: Path) -> None:
    sampler = VLLMSampler(VLLMConfig(url=f"{stand_in.url}/", weights_dir=str(tmp_path)))
    sampler(make_policy(), PROMPTS, SAMPLING, row_seeds=SEEDS)
    assert stand_in.version.endswith("-0")


def test_https_to_a_server_without_it_is_an_error_at_once(stand_in: StandIn, tmp_path: Path) -> None:
    url = stand_in.url.replace("http", "https")
    sampler, begun = VLLMSampler(VLLMConfig(url=url, weights_dir=str(tmp_path))), time.monotonic()
    with pytest.raises(EngineError, match=r"there is no secure connection: .* if the server has none, use http://"):
        sampler(make_policy(), PROMPTS, SAMPLING, row_seeds=SEEDS)
    assert time.monotonic() - begun < 60  # and not after start_timeout_s


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"url": "here"}, "must be an http:// or https:// address"),
        ({"url": "http://here?key=1"}, r"without \? and #"),
        ({"url": "http://here:port"}, "url: is no address"),
        ({"url": "http://me:secret@here"}, "^url: holds a user name or a password; leave it out, and set the header"),
        ({"url": ("http://here", "http://here/")}, "url: lists http://here twice"),
        ({"url": "http://here", "headers": {"Authorization": "Bearer x\n"}}, "'Authorization' or its value has char"),
        ({"python": "python", "args": ("--port=80",)}, "args: --port: the run sets where its server listens"),
        ({"python": "python", "args": ("--ssl_keyfile", "x")}, "args: --ssl-keyfile: the run sets where its server"),
        ({"python": "python", "args": ("--api-key", "secret")}, "args: --api-key: arguments are written to the files"),
        ({"url": "http://here", "python": "python"}, "leave one of them out"),
        ({"url": "http://here", "args": ("--x",)}, "args: is about a server that the run starts"),
        ({"url": "http://here", "lora": "adapter"}, "needs a server that the run starts"),
        ({"python": "python", "lora": "adapter", "transfer": "broadcast"}, "an adapter reaches a server through files"),
    ],
)
def test_options_that_contradict_one_another_are_refused(options: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        VLLMConfig(**options)


def test_a_sampler_needs_a_server() -> None:
    with pytest.raises(ConfigError, match=r"set sampler.url, .* or sampler.python"):
        VLLMSampler(VLLMConfig())
