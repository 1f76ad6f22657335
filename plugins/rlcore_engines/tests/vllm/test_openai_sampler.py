"""Completions of a server with the API of OpenAI: what is asked, what is refused, and what becomes of answers."""

from __future__ import annotations

import pytest
from openai_runs import make_policy, make_prompts, make_sampler, sample
from openai_stand_in import EXTRA, UNKNOWN, OpenAIStandIn, letters

from rlcore.settings import SamplingConfig
from rlcore.types import Trajectories
from rlcore_engines.vllm.connection import EngineError
from rlcore_testing.small import EOS, LETTERS, PROMPTS


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
