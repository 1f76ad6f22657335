"""Tests of turns of the assistant that contain thinking, in their text or in a key of its own."""

from __future__ import annotations

import pytest
from chat_turns import ANSWERS, THOUGHT, assistant, chosen, dialogue, sampled_from, tokenise, tokenizer_for, user
from template_families import CHATML, FAMILIES, FINAL

from rlcore.errors import DataError


@pytest.mark.parametrize("thought", [THOUGHT, "<think>why ?</think>", "<think>\nwhy ?</think>\n"])
@pytest.mark.parametrize("name", ["qwen 3", "qwen 3.5", "deepseek r1 distill", "nemotron nano 2"])
def test_each_turn_is_trained_with_its_thinking(byte_tokenizer, name, thought):
    family = FAMILIES[name]
    tokenizer, messages = tokenizer_for(byte_tokenizer, family), dialogue(2, thought)
    samples, end = tokenise(tokenizer, messages), family.end.strip()
    for i, ((tokens, mask), said) in enumerate(zip(samples, chosen(tokenizer, messages), strict=True)):
        prompt = sampled_from(tokenizer, messages[: 2 * i + 1])
        assert tokens[: mask.index(True)] == prompt
        whole = tokenizer.decode(prompt)[-9:] + said  # the prompt may end with <think>
        assert "".join(whole.split()).endswith("".join(f"<think>why ?</think>{ANSWERS[i]}{end}".split()))


def test_white_space_before_a_thought_belongs_to_the_prompt(byte_tokenizer):
    tokenizer = tokenizer_for(byte_tokenizer, FAMILIES["chatml"])
    tokenizer.chat_template = CHATML.replace("assistant\n{% endif", "assistant\n<think>{% endif")
    messages = [user("why ?"), assistant(" \n<think>the cat</think>")]
    assert chosen(tokenizer, messages) == ["the cat</think><|im_end|>"]
    ((tokens, mask),) = tokenise(tokenizer, messages)
    assert tokens[: mask.index(True)] == sampled_from(tokenizer, messages[:1])


@pytest.mark.parametrize(("name", "turns"), [("deepseek r1 distill", 1), ("nemotron nano 2", 1), ("qwen 3", 2)])
def test_thinking_that_the_template_drops_is_reported(byte_tokenizer, name, turns):
    tokenizer, messages = tokenizer_for(byte_tokenizer, FAMILIES[name]), dialogue(turns, THOUGHT)
    with pytest.raises(DataError, match=r"row: message 1 \(assistant\): .*<think>\\nwhy \?.*data.turns=each"):
        tokenise(tokenizer, messages, turns="joint")
    assert THOUGHT.partition("\n")[2].rstrip() in chosen(tokenizer, messages)[0]


@pytest.mark.parametrize(
    ("name", "key", "said"),
    [
        ("qwen 3", "reasoning_content", "<think>\nwhy ?\n</think>\n\nbecause .<|im_end|>"),
        ("qwen 3.5", "reasoning_content", "why ?\n</think>\n\nbecause .<|im_end|>"),
        ("nemotron 3", "reasoning_content", "why ?\n</think>\nbecause .<|im_end|>"),
        (
            "gpt-oss", "thinking", "<|channel|>analysis<|message|>why ?<|end|><|start|>assistant"
            + FINAL + "because .<|return|>",
        ),
    ],
)  # fmt: skip
def test_thinking_in_a_key_of_its_own_is_trained_on_where_the_template_renders_it(byte_tokenizer, name, key, said):
    tokenizer, messages = tokenizer_for(byte_tokenizer, FAMILIES[name]), dialogue(1)
    messages[1][key] = "why ?"
    assert chosen(tokenizer, messages) == chosen(tokenizer, messages, turns="joint") == [said]
    tokenizer.chat_template = CHATML
    for turns in ("joint", "each"):
        with pytest.raises(DataError, match=rf"row: message 1 \(assistant\): .* drops 'why \?' of its '{key}'"):
            tokenise(tokenizer, messages, turns=turns)


def test_a_thought_is_not_found_in_the_answer(byte_tokenizer):
    answer = {**assistant("the cat sat"), "reasoning_content": "the cat"}
    with pytest.raises(DataError, match=r"row: message 1 \(assistant\): .* drops 'the cat' of its 'reasoning_content'"):
        tokenise(tokenizer_for(byte_tokenizer, FAMILIES["chatml"]), [user("why ?"), answer])
    both = {**answer, "content": "<think>\nthe cat\n</think>\n\nthe cat sat"}  # the thought is in the content too
    assert chosen(tokenizer_for(byte_tokenizer, FAMILIES["chatml"]), [user("why ?"), both]) == [
        f"{both['content']}<|im_end|>"
    ]
    tokenizer = tokenizer_for(byte_tokenizer, FAMILIES["qwen 3.5"])
    for message in (answer, both):
        assert chosen(tokenizer, [user("why ?"), message]) == ["the cat\n</think>\n\nthe cat sat<|im_end|>"]


def test_a_prompt_without_thinking_refuses_an_answer_with_it(byte_tokenizer):
    tokenizer = tokenizer_for(byte_tokenizer, FAMILIES["qwen 3"])
    with pytest.raises(DataError, match=r"message 1 \(assistant\): .* ends with '.*</think>\\n\\n', and trained"):
        tokenise(tokenizer, dialogue(1, THOUGHT), enable_thinking=False)
