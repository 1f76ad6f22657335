from __future__ import annotations

import pytest
from template_families import FAMILIES, FINAL
from tokenizers import Tokenizer
from transformers import ByT5Tokenizer, PreTrainedTokenizerFast

from rlcore.data.chat import Chat
from rlcore.data.turns import tokenise_chats
from rlcore.errors import DataError

SYSTEM = {"role": "system", "content": "Be brief."}
QUESTIONS, ANSWERS = ["why ?", "the cat", "the dog"], ["because .", "the\nmat", "the food !"]
CALL = {"type": "function", "function": {"name": "add", "arguments": {"a": 1}}}
TALK = [
    {"role": "user", "content": "why ?"},
    {"role": "assistant", "content": "", "tool_calls": [CALL]},
    {"role": "tool", "content": "2"},
    {"role": "assistant", "content": "because ."},
]
QWEN_CALL = '<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call><|im_end|>'
TOOLS = [{"type": "function", "function": {"name": "add"}}]


def tokenizer_for(byte_tokenizer, family):
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_str(byte_tokenizer.backend_tokenizer.to_str()), eos_token="<|eos|>",
        bos_token="<|bos|>", pad_token="<|eos|>",
    )  # fmt: skip
    tokenizer.add_special_tokens({"additional_special_tokens": list(family.special)})
    tokenizer.chat_template = family.template
    return tokenizer


def user(text):
    return {"role": "user", "content": text}


def assistant(text):
    return {"role": "assistant", "content": text}


def dialogue(turns):
    pairs = zip(QUESTIONS[:turns], ANSWERS[:turns], strict=True)
    return [message for asked, said in pairs for message in (user(asked), assistant(said))]


def chosen(tokenizer, messages, *, first=0, **options):
    """Return the text of each run of chosen tokens, and check that the tokens are those of the whole rendering."""
    ((tokens, mask),) = tokenise_chats(tokenizer, [Chat("row", messages, first=first, template=options)])
    assert tokens == tokenizer.apply_chat_template(messages, return_dict=False, **options)
    runs, run = [], []
    for token, mark in [*zip(tokens, mask, strict=True), (None, False)]:
        if mark:
            run.append(token)
        elif run:
            runs.append(tokenizer.decode(run))
            run = []
    return runs


@pytest.fixture(params=FAMILIES)
def family(request):
    return FAMILIES[request.param]


@pytest.mark.parametrize("turns", [1, 2, 3])
def test_answers_and_what_ends_them_are_chosen_in_every_family(byte_tokenizer, family, turns):
    tokenizer, messages = tokenizer_for(byte_tokenizer, family), dialogue(turns)
    assert chosen(tokenizer, messages, **family.options) == family.expected(ANSWERS[:turns])
    if family.has_system:
        assert chosen(tokenizer, [SYSTEM, *messages], **family.options) == family.expected(ANSWERS[:turns])
    else:
        with pytest.raises(DataError, match=r"row: the chat template raised .*System role not supported"):
            chosen(tokenizer, [SYSTEM, *messages], **family.options)


def test_the_answer_to_a_conversation_is_chosen_alone(byte_tokenizer, family):
    tokenizer = tokenizer_for(byte_tokenizer, family)
    assert chosen(tokenizer, dialogue(3), first=4, **family.options) == family.expected(ANSWERS)[2:]


def test_blank_ends_of_answers_are_chosen_as_far_as_they_are_rendered(byte_tokenizer):
    for name, expected in (("chatml", " the cat \n<|im_end|>"), ("gemma", "the cat<end_of_turn>")):
        talk = [user("why ?"), assistant(" the cat \n")]
        assert chosen(tokenizer_for(byte_tokenizer, FAMILIES[name]), talk) == [expected]


def test_an_answer_that_begins_like_the_rest_of_its_prompt_is_chosen_whole(byte_tokenizer):
    tokenizer = tokenizer_for(byte_tokenizer, FAMILIES["deepseek r1 distill"])  # whose prompts end with <think>
    assert chosen(tokenizer, [user("why ?"), assistant("<thing>")]) == ["<thing><|eos|>"]


@pytest.mark.parametrize(
    ("name", "key", "first", "last"),
    [
        ("qwen 3", "reasoning_content", "because .<|im_end|>", "<think>\nwhy ?\n</think>\n\nthe\nmat<|im_end|>"),
        ("qwen 3", None, "because .<|im_end|>", "<think>\nwhy ?\n</think>\n\nthe\nmat<|im_end|>"),
        ("deepseek r1 distill", None, "\n\nbecause .<|eos|>", "\n\nthe\nmat<|eos|>"),
        ("nemotron 3", "reasoning_content", "</think>because .<|im_end|>", "why ?\n</think>\nthe\nmat<|im_end|>"),
        (
            "gpt-oss", "thinking", "<|channel|>final<|message|>because .<|end|>",
            "<|channel|>analysis<|message|>why ?<|end|><|start|>assistant" + FINAL + "the\nmat<|return|>",
        ),
    ],
)  # fmt: skip
def test_thinking_is_chosen_where_the_template_renders_it(byte_tokenizer, name, key, first, last):
    messages = dialogue(2)
    for message in messages[1::2]:
        if key:
            message[key] = "why ?"
        else:
            message["content"] = f"<think>\nwhy ?\n</think>\n\n{message['content']}"
    assert chosen(tokenizer_for(byte_tokenizer, FAMILIES[name]), messages) == [first, last]


@pytest.mark.parametrize(
    ("name", "call", "answer"),
    [
        ("qwen 2.5", QWEN_CALL, "because .<|im_end|>"),
        ("qwen 3", QWEN_CALL, "<think>\n\n</think>\n\nbecause .<|im_end|>"),
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
def test_calls_of_tools_are_chosen_and_their_responses_are_not(byte_tokenizer, name, call, answer):
    tokenizer = tokenizer_for(byte_tokenizer, FAMILIES[name])
    assert chosen(tokenizer, TALK, tools=TOOLS) == [call, answer]
    assert chosen(tokenizer, TALK[:2], tools=TOOLS)[0].endswith(call)


def test_a_tokenizer_without_offsets_chooses_the_same_text():
    tokenizer = ByT5Tokenizer(additional_special_tokens=list(FAMILIES["qwen 3"].special), extra_ids=0)
    tokenizer.chat_template = FAMILIES["qwen 3"].template
    assert not tokenizer.is_fast
    assert chosen(tokenizer, dialogue(2)) == FAMILIES["qwen 3"].expected(ANSWERS[:2])


def test_an_assistant_that_speaks_first_is_chosen_without_its_header(byte_tokenizer):
    for name in ("chatml", "llama 3"):
        tokenizer = tokenizer_for(byte_tokenizer, FAMILIES[name])
        assert chosen(tokenizer, dialogue(2)[1:]) == FAMILIES[name].expected(ANSWERS[:2])


def test_contents_in_parts_are_found(byte_tokenizer):
    tokenizer = tokenizer_for(byte_tokenizer, FAMILIES["chatml"])
    tokenizer.chat_template = tokenizer.chat_template.replace("m.content", "m.content[0].text")
    parts = [{**message, "content": [{"type": "text", "text": message["content"]}]} for message in dialogue(2)]
    assert chosen(tokenizer, parts) == FAMILIES["chatml"].expected(ANSWERS[:2])


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("{% for m in messages if m.role == 'user' %}{{ m.content }}{% endfor %}", "omits the content of message 1"),
        ("{% for m in messages %}{{ m.content | length }}{% endfor %}", "renders other text once a word is added"),
        ("{{ raise_exception('roles must alternate') }}", "raised .*roles must alternate"),
    ],
)
def test_templates_that_hide_the_assistant_are_refused(byte_tokenizer, template, message):
    tokenizer = tokenizer_for(byte_tokenizer, FAMILIES["chatml"])
    tokenizer.chat_template = template
    with pytest.raises(DataError, match=f"row: the chat template {message}"):
        chosen(tokenizer, dialogue(2))
