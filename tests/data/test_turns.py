from __future__ import annotations

import pytest
from template_families import CHATML, FAMILIES, FINAL
from tokenizers import Tokenizer
from transformers import ByT5Tokenizer, PreTrainedTokenizerFast

from rlcore.errors import DataError
from rlcore.settings import DataConfig
from rlcore_preferences.labelled_answers import build_unpaired
from rlcore_preferences.preferences import build_preferences
from rlcore_transformers.data.chat import Chat
from rlcore_transformers.data.prompts import build_prompts
from rlcore_transformers.data.samples import build_samples
from rlcore_transformers.data.turns import tokenise_chats

SYSTEM = {"role": "system", "content": "Be brief."}
QUESTIONS, ANSWERS = ["why ?", "the cat", "the dog"], ["because .", "the\nmat", "the food !"]
THOUGHT = "<think>\nwhy ?\n</think>\n\n"
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


def dialogue(turns, thought=""):
    pairs = zip(QUESTIONS[:turns], ANSWERS[:turns], strict=True)
    return [message for asked, said in pairs for message in (user(asked), assistant(thought + said))]


def tokenise(tokenizer, messages, *, first=0, turns="each", **options):
    (samples,) = tokenise_chats(
        tokenizer, [Chat("row", messages, first=first, template=options)], DataConfig(turns=turns)
    )
    return samples


def chosen(tokenizer, messages, **how):
    """Return the text of each run of chosen tokens of each sample."""
    runs = []
    for tokens, mask in tokenise(tokenizer, messages, **how):
        run = []
        for token, mark in [*zip(tokens, mask, strict=True), (None, False)]:
            if mark:
                run.append(token)
            elif run:
                runs.append(tokenizer.decode(run))
                run = []
    return runs


def sampled_from(tokenizer, messages, **options):
    """Return the tokens of the prompt from which the assistant's next message is sampled."""
    row = {"prompt": messages, "chat_template_kwargs": options}
    (prompt,) = build_prompts([row], tokenizer, DataConfig(), max_length=0)
    return list(prompt.tokens)


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


def test_an_error_suggests_an_option_only_if_it_is_not_set_already(byte_tokenizer):
    tokenizer = tokenizer_for(byte_tokenizer, FAMILIES["chatml"])
    for template, turns, is_named in ((CHATML, "joint", True), (CHATML, "each", False), (MARKED, "joint", False)):
        tokenizer.chat_template = template.replace("m.content }}", "m.content[0].text }}")
        parts = [{"type": "text", "text": text} for text in ("the", "cat")]
        with pytest.raises(DataError, match=r"drops .* of its 'content'") as caught:
            tokenise(tokenizer, [assistant(parts)], turns=turns)
        assert ("data.turns=each" in str(caught.value)) == is_named


def test_a_prompt_without_thinking_refuses_an_answer_with_it(byte_tokenizer):
    tokenizer = tokenizer_for(byte_tokenizer, FAMILIES["qwen 3"])
    with pytest.raises(DataError, match=r"message 1 \(assistant\): .* ends with '.*</think>\\n\\n', and trained"):
        tokenise(tokenizer, dialogue(1, THOUGHT), enable_thinking=False)


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


MARKED = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' %}{% generation %}"
    "{{ m.content }}<|im_end|>{% endgeneration %}{% else %}{{ m.content }}<|im_end|>{% endif %}{{ '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def test_a_template_that_marks_generations_chooses_what_others_choose(byte_tokenizer):
    tokenizer = tokenizer_for(byte_tokenizer, FAMILIES["chatml"])
    messages = [*dialogue(2), user("why ?"), assistant("\nbecause")]
    for turns, first in (("joint", 0), ("joint", 2), ("each", 0), ("each", 2)):
        tokenizer.chat_template = CHATML
        plain = tokenise(tokenizer, messages, turns=turns, first=first)
        tokenizer.chat_template = MARKED
        assert tokenise(tokenizer, messages, turns=turns, first=first) == plain
    for (_, mask), i in zip(plain, (3, 5), strict=True):
        assert mask.index(True) == len(sampled_from(tokenizer, messages[:i]))


def test_a_template_that_leaves_calls_out_of_its_generations_is_refused(byte_tokenizer):
    tokenizer = tokenizer_for(byte_tokenizer, FAMILIES["chatml"])
    outside = MARKED.replace(
        "{% endgeneration %}", "{% endgeneration %}{{ m.tool_calls[0].function.name if m.tool_calls }}"
    )
    for template in (MARKED, outside):
        tokenizer.chat_template = template
        for content in ("", "I go", "I add them"):
            talk = [TALK[0], {**TALK[1], "content": content}, *TALK[2:]]
            for turns in ("joint", "each"):
                with pytest.raises(
                    DataError, match=r"row: message 1 \(assistant\): .* drops .*'add'.* of its 'tool_calls'"
                ):
                    tokenise(tokenizer, talk, turns=turns)
    tokenizer.chat_template = MARKED.replace("{{ m.content }}<|im_end|>{% end", "{{ m.tool_calls }}<|im_end|>{% end")
    with pytest.raises(DataError, match=r"row: message 3 \(assistant\): .* drops 'because \.' of its 'content'"):
        tokenise(tokenizer, TALK)


@pytest.mark.parametrize("content", ["", " \n", [], [{"type": "text", "text": " "}]])
def test_an_empty_message_of_the_assistant_is_refused(byte_tokenizer, content):
    tokenizer = tokenizer_for(byte_tokenizer, FAMILIES["chatml"])
    for template in (CHATML, MARKED):
        tokenizer.chat_template = template
        for messages in ([user("why ?"), assistant(content)], [*dialogue(1), user("why ?"), assistant(content)]):
            wrong = rf"samples\[1\]: message {len(messages) - 1} \(assistant\): 'content' is .*, so there is nothing"
            with pytest.raises(DataError, match=wrong):
                build_samples([dialogue(1), messages], tokenizer, DataConfig(system_prompt="why"), max_length=0)
    row = {"prompt": [user("why ?")], "chosen": [assistant(content)], "rejected": [assistant("no")]}
    with pytest.raises(DataError, match=r"samples\[0\]: message 1 \(assistant\): 'content' is"):
        build_preferences([row], tokenizer, DataConfig(), max_length=0)


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


@pytest.mark.parametrize("content", [[{"type": "text", "text": "why"}], ["why"], {"a": "why"}])
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
