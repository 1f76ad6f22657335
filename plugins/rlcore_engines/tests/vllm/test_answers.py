"""Answers that do not belong to their request are errors, and none of their tokens is learned from."""

from __future__ import annotations

import copy
import json
import math
from pathlib import Path
from typing import Any

import pytest
from vllm_stand_in import spoil

from rlcore.errors import ConfigError, DataError
from rlcore.settings import SamplingConfig
from rlcore.types import Prompt
from rlcore_engines.vllm.connection import EngineError, ServerUnavailable
from rlcore_engines.vllm.generation import Completion, OldWeights, check_sampling, read_answer, token_limits

RECORDED = json.loads(Path(__file__).with_name("recorded_answer.json").read_text())
"""What vLLM 0.32 answered: two tokens, of which the second is EOS."""
ASKED = Completion(prompt=(3,), limit=3, seed=1, sampling=SamplingConfig(), eos=(21,))


def read(answer: Any = RECORDED, asked: Completion = ASKED, version: str = "default") -> Any:
    return read_answer(answer, asked, version, "http://here")


def test_a_recorded_answer_of_vllm_is_read() -> None:
    found = read()
    assert found.tokens == (0, 21)
    assert found.logprobs == (-1.442322015762329, -0.0006451908848248422)


@pytest.mark.parametrize(
    ("fault", "error", "words"),
    [
        ("twice", EngineError, "the answer has 2"),
        ("short", EngineError, "has 1 tokens, of which 3 were asked for"),
        ("long", EngineError, "goes on after a token that ends it"),
        ("lacks_logprobs", EngineError, "2 tokens and log-probs of 1"),
        ("other_token", EngineError, "no log-prob belongs to each token"),
        ("no_version", EngineError, "does not state the version"),
        ("old", OldWeights, "version earlier"),
        ("aborted", ServerUnavailable, "ended with 'abort'"),
    ],
)
def test_a_spoilt_answer_is_refused(fault: str, error: type[Exception], words: str) -> None:
    answer = copy.deepcopy(RECORDED)
    spoil(answer["choices"][0], answer["choices"], fault)
    with pytest.raises(error, match=words):
        read(answer)


def test_a_logprob_that_is_no_number_is_nan_and_no_large_negative_number() -> None:
    """vLLM sends -9999 in place of NaN."""
    answer = copy.deepcopy(RECORDED)
    spoil(answer["choices"][0], answer["choices"], "not_a_number")
    first, second = read(answer).logprobs
    assert math.isnan(first)
    assert second == -0.0006451908848248422


@pytest.mark.parametrize("answer", [None, [], {}, {"choices": None}, {"choices": []}, {"choices": ["text"]}])
def test_an_answer_of_another_form_is_refused(answer: Any) -> None:
    with pytest.raises(EngineError, match="one completion was asked for"):
        read(answer)


def test_weights_that_change_within_a_completion_are_old_weights() -> None:
    answer = copy.deepcopy(RECORDED)
    answer["choices"][0]["weight_versions"] = [
        {"version": "earlier", "start": 0, "end": 1}, {"version": "default", "start": 1, "end": 2},
    ]  # fmt: skip
    with pytest.raises(OldWeights, match="earlier, default"):
        read(answer)


def test_a_token_that_ends_nothing_needs_the_full_length() -> None:
    with pytest.raises(EngineError, match="has 2 tokens, of which 3 were asked for"):
        read(asked=Completion(prompt=(3,), limit=3, seed=1, sampling=SamplingConfig(), eos=(7,)))


def test_a_request_states_every_option() -> None:
    """A server's own defaults, such as those of a generation config, have no effect."""
    sampling = SamplingConfig(temperature=0.7, top_k=5, top_p=0.9, min_new_tokens=2, stop_sequences=("ab",))
    asked = Completion(prompt=(3, 4), limit=8, seed=2**63 - 1, sampling=sampling, eos=(21,), model="adapter")
    assert asked.body() == {
        "token_ids": [3, 4],
        "model": "adapter",
        "sampling_params": {
            "max_tokens": 8, "min_tokens": 2, "temperature": 0.7, "top_k": 5, "top_p": 0.9, "min_p": 0.0,
            "repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0, "logprobs": 0,
            "stop_token_ids": [21], "ignore_eos": True, "stop": ["ab"], "detokenize": True,
            "skip_special_tokens": False, "seed": 2**63 - 1,
        },
    }  # fmt: skip


@pytest.mark.parametrize(
    ("sampling", "words"),
    [
        (SamplingConfig(beta=1.0), "gen.beta = 1: a vLLM server has no Q-heads"),
        (SamplingConfig(temperature=0.005), r"gen.temperature = 0.005: vLLM samples at 0.01 instead"),
        (SamplingConfig(stop_sequences=("",)), "gen.stop_sequences: '' would end every continuation"),
    ],
)
def test_what_the_engine_cannot_do_is_refused(sampling: SamplingConfig, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        check_sampling(sampling)


def test_prompts_leave_room_for_a_token() -> None:
    assert token_limits([Prompt("ab", (0, 1)), Prompt("c", (2,))], 8, 6) == [4, 5]
    with pytest.raises(DataError, match=r"prompts\[1\] = 'abc' has 3 tokens"):
        token_limits([Prompt("c", (2,)), Prompt("abc", (0, 1, 2))], 8, 3)
    with pytest.raises(DataError, match=r"prompts\[0\] = '' has 0 tokens"):
        token_limits([Prompt("", ())], 8, 0)


def test_a_prompt_that_shows_an_image_is_refused_before_a_server_gets_its_text() -> None:
    with pytest.raises(DataError, match=r"prompts\[1\] = '<image:4f0c21a9>c' shows an image"):
        token_limits([Prompt("ab", (0, 1)), Prompt("<image:4f0c21a9>c", (0x4F0C21A9, 2))], 8, 0)
