"""Tests of messages and chat templates that are refused, with an error that names the message."""

from __future__ import annotations

import pytest
from chat_turns import MARKED, SYSTEM, THOUGHT, assistant, chosen, dialogue, sampled_from, tokenise, tokenizer_for, user
from template_families import CHATML, FAMILIES

from rlcore.errors import DataError
from rlcore.settings import DataConfig
from rlcore_transformers.data.prompts import build_prompts
from rlcore_transformers.data.samples import build_samples
from rlcore_transformers.preferences.preferences import build_preferences, build_unpaired


def test_an_error_suggests_an_option_only_if_it_is_not_set_already(byte_tokenizer):
    tokenizer = tokenizer_for(byte_tokenizer, FAMILIES["chatml"])
    for template, turns, is_named in ((CHATML, "joint", True), (CHATML, "each", False), (MARKED, "joint", False)):
        tokenizer.chat_template = template.replace("m.content }}", "m.content[0].text }}")
        parts = [{"type": "text", "text": text} for text in ("the", "cat")]
        with pytest.raises(DataError, match=r"drops .* of its 'content'") as caught:
            tokenise(tokenizer, [assistant(parts)], turns=turns)
        assert ("data.turns=each" in str(caught.value)) == is_named


@pytest.mark.parametrize("content", ["", " \n", [], [{"type": "text", "text": " "}]])
def test_an_empty_message_of_the_assistant_is_refused_and_an_empty_answer_is_not_chosen(byte_tokenizer, content):
    tokenizer = tokenizer_for(byte_tokenizer, FAMILIES["chatml"])
    for template in (CHATML, MARKED):
        tokenizer.chat_template = template
        for messages in ([user("why ?"), assistant(content)], [*dialogue(1), user("why ?"), assistant(content)]):
            wrong = rf"samples\[1\]: message {len(messages) - 1} \(assistant\): 'content' is .*, so there is nothing"
            with pytest.raises(DataError, match=wrong):
                build_samples([dialogue(1), messages], tokenizer, DataConfig(system_prompt="why"), max_length=0)
    row = {"prompt": [user("why ?")], "chosen": [assistant(content)], "rejected": [assistant("no")]}
    (pair,) = build_preferences([row], tokenizer, DataConfig(), max_length=0)
    assert list(pair.chosen.tokens) == sampled_from(tokenizer, row["prompt"])
    assert not any(pair.chosen.action_mask)
    assert any(pair.rejected.action_mask)


@pytest.mark.parametrize(
    ("role", "meant"),
    [("asistant", "assistant"), ("Assistant", "assistant"), ("gpt", "assistant"), ("model", "assistant"),
     ("usr", "user"), ("human", "user"), ("sytem", "system")],
)  # fmt: skip
def test_a_misspelt_role_is_named(byte_tokenizer, role, meant):
    tokenizer = tokenizer_for(byte_tokenizer, FAMILIES["chatml"])
    messages = [*dialogue(1), {"role": role, "content": "the cat"}]
    wrong = rf"\[1\].*: message 2: 'role' is '{role}'; did you mean '{meant}'\?"
    data = DataConfig(system_prompt="why")
    with pytest.raises(DataError, match=rf"samples{wrong}"):
        build_samples([dialogue(1), messages], tokenizer, data, max_length=0)
    with pytest.raises(DataError, match=rf"prompts{wrong}"):
        build_prompts([dialogue(1), messages], tokenizer, data, max_length=0)
    row = {"prompt": [user("why ?")], "completion": [assistant("no")], "label": True}
    with pytest.raises(DataError, match=rf"samples{wrong}"):
        build_unpaired([row, {**row, "prompt": messages}], tokenizer, data, max_length=0)


def test_a_role_that_the_template_knows_is_accepted(byte_tokenizer):
    tokenizer = tokenizer_for(byte_tokenizer, FAMILIES["chatml"])
    messages = [user("why ?"), {"role": "observation", "content": "2"}, assistant("because")]
    with pytest.raises(DataError, match="'role' is 'observation'; did you mean 'tool'"):
        tokenise(tokenizer, messages)
    tokenizer.chat_template = "{% if messages[0].role == 'observation' %}{% endif %}" + CHATML
    assert chosen(tokenizer, messages) == ["because<|im_end|>"]
    assert chosen(tokenizer, [{"role": "critic", "content": "no"}, *messages]) == ["because<|im_end|>"]
    tokenizer.chat_template = FAMILIES["gemma"].template  # which writes 'model' for the assistant
    with pytest.raises(DataError, match="message 2: 'role' is 'model'; did you mean 'assistant'"):
        tokenise(tokenizer, [*dialogue(1), {"role": "model", "content": "no"}])


def test_a_preference_between_answers_of_several_turns_is_refused(byte_tokenizer):
    tokenizer = tokenizer_for(byte_tokenizer, FAMILIES["qwen 3"])
    row = {"chosen": [*dialogue(2, THOUGHT)], "rejected": [*dialogue(1, THOUGHT), user("why"), assistant("no")]}
    with pytest.raises(DataError, match=r"samples\[0\]: an answer has 2 turns of the assistant.* one row for each"):
        build_preferences([{**row, "prompt": [SYSTEM]}], tokenizer, DataConfig(turns="each"), max_length=0)
    (pair,) = build_preferences(
        [{"prompt": [user("why ?")], "chosen": [assistant("<think>why</think>yes")], "rejected": [assistant("no")]}],
        tokenizer_for(byte_tokenizer, FAMILIES["qwen 3.5"]), DataConfig(turns="each"), max_length=0,
    )  # fmt: skip
    prompt = sampled_from(tokenizer_for(byte_tokenizer, FAMILIES["qwen 3.5"]), [user("why ?")])
    for sample in (pair.chosen, pair.rejected):
        assert list(sample.tokens[: sample.action_mask.index(True)]) == prompt


@pytest.mark.parametrize("content", [[{"type": "text", "text": "why"}] * 2, ["why"], {"a": "why"}])
def test_a_list_that_a_template_writes_as_python_does_is_refused(byte_tokenizer, content):
    tokenizer = tokenizer_for(byte_tokenizer, FAMILIES["chatml"])
    data = DataConfig(system_prompt="Be brief.")
    for template in (CHATML, MARKED):
        tokenizer.chat_template = template
        with pytest.raises(DataError, match=r"samples\[0\]: message 0 \(user\): .* 'content' as Python does"):
            build_samples([[user(content), assistant("yes")]], tokenizer, data, max_length=0)
        with pytest.raises(DataError, match=r"samples\[0\]: message 1 \(assistant\): .*'content' (as Python|is) "):
            build_samples([[user("why ?"), assistant(content)]], tokenizer, data, max_length=0)
        with pytest.raises(DataError, match=r"prompts\[0\].*: message 0 \(user\): .* 'content' as Python does"):
            build_prompts([[user(content)]], tokenizer, data, max_length=0)
    tokenizer.chat_template = CHATML.replace("m.content", "m.content | tojson")
    assert build_prompts([[user(content)]], tokenizer, data, max_length=0)


@pytest.mark.parametrize(
    ("template", "message"),
    [
        (
            "{% for m in messages if m.role == 'user' %}{{ m.content }}{% endfor %}",
            "drops 'because .' of its 'content'",
        ),
        ("{% for m in messages %}{{ m.content | length }}{% endfor %}", "renders other text once a word is added"),
        ("{{ raise_exception('roles must alternate') }}", "raised .*roles must alternate"),
    ],
)
def test_templates_that_hide_the_assistant_are_refused(byte_tokenizer, template, message):
    tokenizer = tokenizer_for(byte_tokenizer, FAMILIES["chatml"])
    tokenizer.chat_template = template
    with pytest.raises(DataError, match=f"^row: .*the chat template {message}"):
        chosen(tokenizer, dialogue(2))
