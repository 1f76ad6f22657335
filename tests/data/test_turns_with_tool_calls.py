"""Tests of turns of the assistant that call tools."""

from __future__ import annotations

import pytest
from chat_turns import CALL, QWEN_CALL, TALK, TOOLS, chosen, sampled_from, tokenise, tokenizer_for
from template_families import CHATML, FAMILIES

from rlcore.errors import DataError


@pytest.mark.parametrize(
    ("name", "call", "answer"),
    [
        ("qwen 2.5", QWEN_CALL, "because .<|im_end|>"),
        ("qwen 3", "<think>\n\n</think>\n\n" + QWEN_CALL, "<think>\n\n</think>\n\nbecause .<|im_end|>"),
        ("llama 3", '{"name": "add", "parameters": {"a": 1}}<|eot_id|>', "because .<|eot_id|>"),
        ("mistral", '[TOOL_CALLS] [{"name": "add", "arguments": {"a": 1}}]<|eos|>', " because .<|eos|>"),
        (
            "gpt-oss", ' to=functions.add<|channel|>commentary json<|message|>{"a": 1}<|call|>',
            "<|channel|>final<|message|>because .<|return|>",
        ),
        (
            "deepseek v3", '<|tool_calls_begin|>add\n```json\n{"a": 1}\n```<|tool_calls_end|><|eos|>',
            "because .<|eos|>",
        ),
    ],
)  # fmt: skip
def test_tool_calls_are_trained_and_tool_responses_are_not(byte_tokenizer, name, call, answer):
    tokenizer = tokenizer_for(byte_tokenizer, FAMILIES[name])
    assert chosen(tokenizer, TALK, tools=TOOLS) == [call, answer]
    for (tokens, mask), before in zip(tokenise(tokenizer, TALK, tools=TOOLS), (TALK[:1], TALK[:3]), strict=True):
        assert tokens[: mask.index(True)] == sampled_from(tokenizer, before, tools=TOOLS)


def test_a_call_and_a_text_beside_it_are_both_rendered_or_refused(byte_tokenizer):
    talk = [TALK[0], {**TALK[1], "content": "I add"}]
    tokenizer = tokenizer_for(byte_tokenizer, FAMILIES["qwen 2.5"])
    assert chosen(tokenizer, talk) == ["I add\n" + QWEN_CALL]
    tokenizer.chat_template = FAMILIES["llama 3"].template
    with pytest.raises(
        DataError, match=r"row: message 1 \(assistant\): the chat template drops 'I add' of its 'content'"
    ):
        tokenise(tokenizer, talk, turns="joint")
    tokenizer.chat_template = CHATML
    with pytest.raises(DataError, match=r"row: message 1 \(assistant\): .* drops .*'add'.* of its 'tool_calls'"):
        tokenise(tokenizer, talk)


def test_every_call_of_a_message_is_rendered_or_refused(byte_tokenizer):
    tokenizer = tokenizer_for(byte_tokenizer, FAMILIES["qwen 2.5"])
    other = {"type": "function", "function": {"name": "mul", "arguments": {"b": 2}}}
    talk = [TALK[0], {**TALK[1], "content": "I add and mul", "tool_calls": [CALL, other]}]
    (said,) = chosen(tokenizer, talk)
    assert said.count("<tool_call>") == 2
    for part in ("[:1]", "[1:]"):
        tokenizer.chat_template = FAMILIES["qwen 2.5"].template.replace(
            "m.tool_calls or []", f"(m.tool_calls or []){part}"
        )
        with pytest.raises(DataError, match=r"row: message 1 \(assistant\): .* drops .*'add'.* of its 'tool_calls'"):
            tokenise(tokenizer, talk)
