"""Calls of tools in the tokens of a turn: control tokens, and messages that a tokenizer describes."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from rlcore_environments.tool_calls import read_calls

ADD = {"name": "add", "arguments": {"a": 1, "b": 2}}
CONTROL = ["</s>", "[TOOL_CALLS]", "[ARGS]", "<|call|>", "<|end|>", "<|assistant|>"]
SCHEMA = {
    "type": "function",
    "function": {
        "name": "add",
        "parameters": {"type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}},
    },
}
TEMPLATE = {
    "start_anchor": "<|assistant|>",
    "defaults": {"role": "assistant"},
    "fields": {
        "tool_calls": {
            "open": "<|call|>", "close": "<|end|>", "content": "json", "repeats": True,
            "transform": {"type": "function", "function": "{content}"},
        },
        "content": {"content": "text"},
    },
}  # fmt: skip
"""Of a model that writes `<|call|>{...}<|end|>`."""


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    """Return a tokenizer of bytes with control tokens."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    plain = Tokenizer(models.BPE({letter: i for i, letter in enumerate(letters)}, []))
    plain.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    plain.decoder = decoders.ByteLevel()
    found = PreTrainedTokenizerFast(tokenizer_object=plain, eos_token="</s>")
    found.add_special_tokens({"additional_special_tokens": CONTROL[1:]})
    return found


def read(tokenizer: Any, text: str, *, before: str = "hello<|assistant|>", **options: Any) -> Any:
    ids, header = (tokenizer(each, add_special_tokens=False)["input_ids"] for each in (text, before))
    return read_calls(tokenizer, ids, header, **options)


def test_markers_that_are_control_tokens_count(tokenizer: Any) -> None:
    """The text of the turn, from which control tokens are left out, would be `add{...}`."""
    text = f"[TOOL_CALLS]add[ARGS]{json.dumps(ADD['arguments'])}</s>"
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    assert tokenizer.decode(ids, skip_special_tokens=True) == f"add{json.dumps(ADD['arguments'])}"
    assert read(tokenizer, text) == (ADD,)


def test_the_token_that_ends_a_turn_is_no_part_of_a_call(tokenizer: Any) -> None:
    assert read(tokenizer, json.dumps(ADD) + "</s>") == (ADD,)
    assert read(tokenizer, json.dumps(ADD)) == (ADD,)


def test_calls_in_reasoning_that_the_template_began_are_not_read(tokenizer: Any) -> None:
    text = f"Or {json.dumps(ADD)}?</think>"
    begun = "hello<|assistant|><think>\n"
    call = f"<tool_call>{json.dumps(ADD)}</tool_call>"
    assert read(tokenizer, f"Or {call}?</think>3</s>", before=begun) == ()
    assert read(tokenizer, f"Or {call}?</s>", before=begun) == ()
    assert read(tokenizer, f"{text}{json.dumps(ADD)}</s>", before=begun) == (ADD,)
    assert read(tokenizer, f"{call}</s>", before=f"{begun}\n</think>\n\n") == (ADD,)


def test_what_follows_a_stop_string_is_not_read(tokenizer: Any) -> None:
    assert read(tokenizer, json.dumps(ADD) + "\nUser: more", stops=["\nUser:"]) == (ADD,)


@pytest.fixture
def described(tokenizer: Any) -> Any:
    tokenizer.response_template = TEMPLATE
    yield tokenizer
    del tokenizer.response_template


def test_a_tokenizer_that_describes_messages_reads_calls_in_their_own_form(described: Any) -> None:
    call = json.dumps(ADD)
    assert read(described, f"I add.<|call|>{call}<|end|><|call|>{call}<|end|></s>") == (ADD, ADD)
    assert read(described, "It is 3.</s>") == ()
    assert read(described, f"<tool_call>{call}</tool_call>") == ()  # the form of another family


def test_a_call_that_the_template_began_is_read(described: Any) -> None:
    assert read(described, f"{json.dumps(ADD)}<|end|></s>", before="hello<|assistant|><|call|>") == (ADD,)


def test_a_broken_call_of_a_described_form_has_an_error(described: Any) -> None:
    (call,) = read(described, "<|call|>{add<|end|></s>")
    assert "the turn cannot be read" in call["error"]


def test_a_description_without_calls_leaves_the_common_forms(tokenizer: Any, described: Any) -> None:
    described.response_template = {**TEMPLATE, "fields": {"content": {"content": "text"}}}
    assert read(described, json.dumps(ADD)) == (ADD,)
