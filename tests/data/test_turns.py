"""Tests that turns of the assistant are trained after the tokens from which they are sampled."""

from __future__ import annotations

import pytest
from chat_turns import (
    ANSWERS,
    SYSTEM,
    THOUGHT,
    TOOLS,
    assistant,
    chosen,
    dialogue,
    sampled_from,
    tokenise,
    tokenizer_for,
    user,
)
from template_families import FAMILIES
from transformers import ByT5Tokenizer

from rlcore.errors import DataError
from rlcore.settings import DataConfig
from rlcore_transformers.data.prompts import build_prompts
from rlcore_transformers.data.samples import build_samples


@pytest.fixture(params=FAMILIES)
def family(request):
    return FAMILIES[request.param]


@pytest.mark.parametrize("first", [0, 2])
@pytest.mark.parametrize("begin", [[], [SYSTEM]], ids=["without a system prompt", "with one"])
def test_every_turn_is_trained_after_the_tokens_from_which_it_is_sampled(byte_tokenizer, family, begin, first):
    if begin and not family.has_system:
        pytest.skip("the template refuses system prompts")
    tokenizer = tokenizer_for(byte_tokenizer, family)
    messages = [*begin, *dialogue(3, THOUGHT if family.opens_thought else "")]
    samples = tokenise(tokenizer, messages, first=first, **family.options)
    turns = [i for i, message in enumerate(messages) if message["role"] == "assistant" and i >= first]
    assert len(samples) == len(turns)
    for i, (tokens, mask) in zip(turns, samples, strict=True):
        prompt = sampled_from(tokenizer, messages[:i], **family.options)
        assert tokens[: len(prompt)] == prompt
        assert mask.index(True) == len(prompt)
    contents = [THOUGHT.removeprefix("<think>\n") * family.opens_thought + content for content in ANSWERS]
    assert chosen(tokenizer, messages, first=first, **family.options) == family.expected(contents[-len(turns) :])


@pytest.mark.parametrize("turns", [1, 2, 3])
def test_joint_samples_train_what_single_turns_train_or_are_refused(byte_tokenizer, family, turns):
    tokenizer, messages = tokenizer_for(byte_tokenizer, family), dialogue(turns)
    if family.opens_thought:
        with pytest.raises(DataError, match=r"sampled from a prompt that ends with '.*<think>\\n'"):
            tokenise(tokenizer, messages, turns="joint")
        return
    each = tokenise(tokenizer, messages, **family.options)
    if turns > 1 and not family.is_joint:
        with pytest.raises(DataError, match=r"row: message 1 \(assistant\): the chat template renders .*turns=each"):
            tokenise(tokenizer, messages, turns="joint", **family.options)
        return
    ((tokens, mask),) = tokenise(tokenizer, messages, turns="joint", **family.options)
    if family.lead != "</think>":  # whose prompt has a line break that the rendering has not
        assert tokens == tokenizer.apply_chat_template(messages, return_dict=False, **family.options)
    marks = [False] * len(tokens)
    for ids, alone in each:
        marks = [mark or (k < len(alone) and alone[k]) for k, mark in enumerate(marks)]
        length = max(k for k, mark in enumerate(alone) if mark) + 1
        assert tokens[:length] == ids[:length]
    assert mask == marks


def test_templates_without_a_system_role_refuse_one(byte_tokenizer):
    with pytest.raises(DataError, match=r"row: the chat template raised .*System role not supported"):
        tokenise(tokenizer_for(byte_tokenizer, FAMILIES["gemma"]), [SYSTEM, *dialogue(1)])


def test_text_before_the_last_question_is_no_joint_sample(byte_tokenizer):
    tokenizer = tokenizer_for(byte_tokenizer, FAMILIES["mistral"])  # which puts tools there
    assert len(tokenise(tokenizer, dialogue(2), tools=TOOLS)) == 2
    with pytest.raises(DataError, match=r"row: message 1 \(assistant\): the chat template renders it as .*turns=each"):
        tokenise(tokenizer, dialogue(2), turns="joint", tools=TOOLS)


def test_white_space_around_answers_is_trained_as_far_as_the_template_renders_it(byte_tokenizer):
    for name, expected in (("chatml", " the cat \n<|im_end|>"), ("gemma", "the cat<end_of_turn>")):
        talk = [user("why ?"), assistant(" the cat \n")]
        assert chosen(tokenizer_for(byte_tokenizer, FAMILIES[name]), talk) == [expected]


def test_a_header_and_an_answer_that_share_a_token_are_tokenised_as_in_sampling(byte_tokenizer):
    family = FAMILIES["chatml"]
    tokenizer = tokenizer_for(byte_tokenizer, family)
    tokenizer.chat_template = (
        "{% for m in messages %}{{ m.role }}: {{ m.content }}<|im_end|>{% endfor %}"
        "{% if add_generation_prompt %}assistant: {% endif %}"
    )
    messages = dialogue(2)
    joined = tokenizer.apply_chat_template(messages[:2], return_dict=False)
    ((tokens, mask),) = tokenise(tokenizer, messages[:2])
    prompt = sampled_from(tokenizer, messages[:1])
    assert joined[: len(prompt)] != prompt  # " because" is a token
    assert tokens[: mask.index(True)] == prompt
    assert tokenizer.decode(tokens) == tokenizer.decode(joined)
    with pytest.raises(
        DataError, match=r"row: message 1 \(assistant\): the end of its prompt, '.*: ', is tokenised tog"
    ):
        tokenise(tokenizer, messages, turns="joint")


def test_bos_is_left_out_of_prompts_and_of_samples(byte_tokenizer):
    for name, add_bos in ((name, add_bos) for name in ("llama 3", "chatml") for add_bos in (None, True, False)):
        tokenizer, data = tokenizer_for(byte_tokenizer, FAMILIES[name]), DataConfig(add_bos=add_bos)
        (sample,) = build_samples([dialogue(1)], tokenizer, data, max_length=0)
        (prompt,) = build_prompts([dialogue(1)[:1]], tokenizer, data, max_length=0)
        has_bos = name == "llama 3" if add_bos is None else add_bos
        assert sample.tokens.count(tokenizer.bos_token_id) == has_bos
        assert sample.tokens[: sample.action_mask.index(True)] == prompt.tokens


def test_a_tokenizer_without_offsets_chooses_the_same_text():
    tokenizer = ByT5Tokenizer(additional_special_tokens=list(FAMILIES["qwen 3"].special), extra_ids=0)
    tokenizer.chat_template = FAMILIES["qwen 3"].template
    assert not tokenizer.is_fast
    assert chosen(tokenizer, dialogue(2)) == FAMILIES["qwen 3"].expected(ANSWERS[:2])


def test_a_tokenizer_that_inserts_spaces_trains_after_the_tokens_of_the_prompt(llama_tokenizer):
    llama_tokenizer.chat_template = (
        "{% for m in messages %}"
        "{{ 'the ' ~ m.content ~ ' dog' if m.role == 'user' else ' ' ~ m.content ~ '</s>' }}{% endfor %}"
    )
    (tokens, mask), _ = tokenise(llama_tokenizer, dialogue(2))
    assert tokens[: mask.index(True)] == sampled_from(llama_tokenizer, dialogue(1)[:1])
    assert llama_tokenizer.decode(tokens, skip_special_tokens=True) == "the why ? dog because ."
    assert tokens[-1] == llama_tokenizer.eos_token_id


def test_a_first_turn_of_the_assistant_is_trained_without_its_header(byte_tokenizer):
    for name in ("chatml", "llama 3"):
        tokenizer = tokenizer_for(byte_tokenizer, FAMILIES[name])
        for turns in ("joint", "each"):
            assert chosen(tokenizer, dialogue(2)[1:], turns=turns) == FAMILIES[name].expected(ANSWERS[:2])


def test_message_contents_in_parts_are_trained(byte_tokenizer):
    tokenizer = tokenizer_for(byte_tokenizer, FAMILIES["chatml"])
    tokenizer.chat_template = tokenizer.chat_template.replace("m.content", "m.content[0].text")
    parts = [{**message, "content": [{"type": "text", "text": message["content"]}]} for message in dialogue(2)]
    assert chosen(tokenizer, parts) == FAMILIES["chatml"].expected(ANSWERS[:2])
