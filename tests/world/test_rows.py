"""Rows of messages as people publish them: what is read has the right tokens, and all else is refused or named."""

from __future__ import annotations

import json

import datasets
import numpy as np
import pandas as pd
import pytest
from chat_turns import MARKED, assistant, runs_of, tokenizer_for, user
from template_families import CHATML, FAMILIES

from rlcore.errors import DataError
from rlcore.settings import DataConfig
from rlcore_dpo.pair_objective import rotated, stack_labelled
from rlcore_reward.process_trainer import build_stepwise
from rlcore_transformers.data import long_chats
from rlcore_transformers.data.messages import TRAIN_KEYS
from rlcore_transformers.data.prompts import build_prompts
from rlcore_transformers.data.samples import build_samples
from rlcore_transformers.data.streams import SampleStream
from rlcore_transformers.preferences.preferences import (
    LabelledSample,
    build_preferences,
    build_unpaired,
    flaw_of,
    usable_pairs,
)

MAKES = {
    "samples": build_samples, "prompts": build_prompts, "preferences": build_preferences, "unpaired": build_unpaired,
    "stepwise": build_stepwise,
}  # fmt: skip
HELPFUL = {"role": "system", "content": "Be kind."}


def build(make, rows, tokenizer, **options):
    what = "prompts" if make == "prompts" else "samples"
    return MAKES[make](rows, tokenizer, DataConfig(**options), max_length=0, what=what)


def trained(rows, tokenizer, **options):
    """Return the text of each run of tokens in the loss of each sample."""
    made = build("samples", rows, tokenizer, **options)
    return [runs_of(sample.tokens, sample.action_mask, tokenizer) for sample in made]


def text_of(sample, tokenizer):
    return tokenizer.decode(list(sample.tokens))


@pytest.fixture
def chatml(byte_tokenizer):
    return tokenizer_for(byte_tokenizer, FAMILIES["chatml"])


@pytest.fixture
def qwen(byte_tokenizer):
    return tokenizer_for(byte_tokenizer, FAMILIES["qwen 2.5"])


# Weights of messages.

TALK = [user("why ?"), assistant("BAD"), user("and ?"), assistant("the cat")]
OFF, ON = [0, 0.0, False], [1, 1.0, True, None]


def weighted(key, value, at=1):
    return [{**message, key: value} if k == at else message for k, message in enumerate(TALK)]


def as_sharegpt(messages):
    speakers = {"user": "human", "assistant": "gpt", "system": "system"}
    rest = ({key: value for key, value in each.items() if key not in ("role", "content")} for each in messages)
    pairs = zip(messages, rest, strict=True)
    return [{"from": speakers[each["role"]], "value": each["content"], **more} for each, more in pairs]


@pytest.mark.parametrize("key", TRAIN_KEYS)
def test_a_turn_with_a_weight_of_0_is_context_and_no_turn_to_learn(chatml, key):
    for value in OFF:
        talk = weighted(key, value)
        forms = [
            talk, {"messages": talk}, {"conversations": as_sharegpt(talk)}, {"messages": json.dumps(talk)},
            {"prompt": talk[:1], "completion": talk[1:]},
        ]  # fmt: skip
        for turns in ("joint", "each"):
            assert trained(forms, chatml, turns=turns) == [["the cat<|im_end|>"]] * len(forms)
        (sample,) = build("samples", [talk], chatml)
        assert "BAD<|im_end|>" in text_of(sample, chatml)
        assert trained([weighted(key, value, at=3)], chatml) == [["BAD<|im_end|>"]]
        assert build("samples", [weighted(key, value, at=2)], chatml) == build("samples", [TALK], chatml)
    for value in ON:
        assert trained([weighted(key, value)], chatml) == [["BAD<|im_end|>", "the cat<|im_end|>"]]


@pytest.mark.parametrize("name", ["chatml", "llama 3", "qwen 3", "deepseek v3", "marked"])
def test_weights_count_whatever_the_template_and_the_number_of_turns(byte_tokenizer, name):
    family = FAMILIES["chatml" if name == "marked" else name]
    tokenizer = tokenizer_for(byte_tokenizer, family)
    if name == "marked":
        tokenizer.chat_template = CHATML.replace(
            "{{ m.content }}<|im_end|>",
            "{% if m.role == 'assistant' %}{% generation %}{{ m.content }}<|im_end|>{% endgeneration %}"
            "{% else %}{{ m.content }}<|im_end|>{% endif %}",
        )
    assert trained([weighted("weight", 0)], tokenizer) == [family.expected(["the cat"])]


@pytest.mark.parametrize("key", TRAIN_KEYS)
@pytest.mark.parametrize("value", [0.5, -1, 2, "false", "0", [1], {}])
def test_another_weight_is_refused_by_name(chatml, key, value):
    where = rf"samples\[1\]: message 1 \(assistant\): '{key}' is .*; it must be 0 or false"
    with pytest.raises(DataError, match=where):
        trained([TALK, weighted(key, value)], chatml)


def test_weights_that_contradict_each_other_or_the_role_are_refused(chatml):
    both = [{**TALK[1], "weight": 1, "train": False}]
    with pytest.raises(DataError, match="'weight' is 1 and 'train' is False; leave one of them out"):
        trained([[TALK[0], *both]], chatml)
    with pytest.raises(DataError, match=r"message 2 \(user\): 'train' is True in a message of the role 'user'"):
        trained([weighted("train", True, at=2)], chatml)
    with pytest.raises(DataError, match=r"samples\[0\]: every message of the assistant has one of weight, .* 0 or fal"):
        trained([[TALK[0], {**TALK[1], "weight": 0}]], chatml)


def test_an_answer_that_is_compared_as_a_whole_has_no_weights_of_turns(chatml):
    off, on = ({**assistant("the cat"), "weight": value} for value in (0, 1))
    rows = {
        "preferences": {"prompt": [user("why ?")], "chosen": [off], "rejected": [assistant("no")]},
        "unpaired": {"prompt": [user("why ?")], "completion": [off], "label": True},
    }
    for make, row in rows.items():
        with pytest.raises(DataError, match=r"samples\[0\]: message 1 \(assistant\): is to be left out of the loss"):
            build(make, [row], chatml)
        whole = json.loads(json.dumps(row).replace('"weight": 0', '"weight": 1'))
        bare = json.loads(json.dumps(row).replace(', "weight": 0', ""))
        assert build(make, [whole], chatml) == build(make, [bare], chatml)
    prompt = {**assistant("BAD"), "weight": 0}  # what comes before an answer is not trained on anyway
    row = {"prompt": [user("why ?"), prompt, user("and ?")], "chosen": [on], "rejected": [assistant("no")]}
    (pair,) = build("preferences", [row], chatml)
    assert runs_of(pair.chosen.tokens, pair.chosen.action_mask, chatml) == ["the cat<|im_end|>"]


# Calls of tools.

CITY = {"city": "Paris", "days": 2}
CITY_TEXT = '{"city": "Paris", "days": 2}'
LOOK_UP = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}
ITEMS = (  # as GLM's and Qwen's later templates
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}{% for c in m.tool_calls or [] %}<tool_call>"
    "{{ c.function.name }}{% for k, v in c.function.arguments.items() %}<{{ k }}>{{ v }}</{{ k }}>{% endfor %}"
    "</tool_call>{% endfor %}<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
JOINED = ITEMS.replace(  # as DeepSeek's, which joins texts
    "{% for k, v in c.function.arguments.items() %}<{{ k }}>{{ v }}</{{ k }}>{% endfor %}",
    "{{ '(' + c.function.arguments + ')' }}",
)
EITHER = ITEMS.replace(  # as Qwen 3's
    "{% for k, v in c.function.arguments.items() %}<{{ k }}>{{ v }}</{{ k }}>{% endfor %}",
    "{% if c.function.arguments is string %}{{ c.function.arguments }}{% else %}{{ c.function.arguments | tojson }}"
    "{% endif %}",
)
PRINTED = ITEMS.replace(  # which writes a mapping as Python does
    "{% for k, v in c.function.arguments.items() %}<{{ k }}>{{ v }}</{{ k }}>{% endfor %}", "{{ c.function.arguments }}"
)
CALLS = {
    "qwen 2.5": (
        None,
        '<tool_call>\n{"name": "look", "arguments": {"city": "Paris", "days": 2}}\n</tool_call><|im_end|>',
    ),
    "llama 3": (None, '{"name": "look", "parameters": {"city": "Paris", "days": 2}}<|eot_id|>'),
    "mistral": (None, '[TOOL_CALLS] [{"name": "look", "arguments": {"city": "Paris", "days": 2}}]<|eos|>'),
    "items": (ITEMS, "<tool_call>look<city>Paris</city><days>2</days></tool_call><|im_end|>"),
    "joined": (JOINED, '<tool_call>look({"city": "Paris", "days": 2})</tool_call><|im_end|>'),
    "either": (EITHER, '<tool_call>look{"city": "Paris", "days": 2}</tool_call><|im_end|>'),
    "printed": (PRINTED, '<tool_call>look{"city": "Paris", "days": 2}</tool_call><|im_end|>'),
}


def called(arguments, **more):
    call = {"id": "call_0", "type": "function", "function": {"name": "look", "arguments": arguments}}
    talk = [user("why ?"), {"role": "assistant", "content": "", "tool_calls": [call]}]
    result = {"role": "tool", "tool_call_id": "call_0", "content": "sun"}
    return {"messages": [*talk, result, assistant("the cat")], **more}


def with_template(byte_tokenizer, name):
    tokenizer = tokenizer_for(byte_tokenizer, FAMILIES[name if name in FAMILIES else "qwen 2.5"])
    tokenizer.chat_template = CALLS[name][0] or tokenizer.chat_template
    return tokenizer


@pytest.mark.parametrize("name", CALLS)
def test_arguments_of_a_call_have_the_form_that_the_template_takes(byte_tokenizer, name):
    tokenizer = with_template(byte_tokenizer, name)
    for arguments in (CITY, CITY_TEXT):
        ((call, _),) = trained([called(arguments)], tokenizer)
        assert call == CALLS[name][1]
    texts = [build("prompts", [{"prompt": called(a)["messages"][:3]}], tokenizer)[0].text for a in (CITY, CITY_TEXT)]
    assert texts[0] == texts[1]
    assert CALLS[name][1] in texts[0]
    row = called(CITY_TEXT)["messages"]
    (pair,) = build("preferences", [{"prompt": row[:1], "chosen": row[1:2], "rejected": [assistant("no")]}], tokenizer)
    assert runs_of(pair.chosen.tokens, pair.chosen.action_mask, tokenizer) == [CALLS[name][1]]


@pytest.mark.parametrize(
    ("written", "rendered"),
    [
        ('{"city":"Paris"}', '{"city": "Paris"}'), ("{}", "{}"), ("", "{}"), ('{"a": "\\"b\\""}', '{"a": "\\"b\\""}'),
        ('{"city": null}', '{"city": null}'), ('{"é": "ü"}', '{"é": "ü"}'),
    ],
)  # fmt: skip
def test_a_json_text_is_parsed_where_the_template_writes_json(qwen, written, rendered):
    (call, _) = trained([called(written)], qwen)[0]
    assert call == f'<tool_call>\n{{"name": "look", "arguments": {rendered}}}\n</tool_call><|im_end|>'


def test_a_text_that_a_template_writes_as_it_is_keeps_its_spaces(byte_tokenizer):
    tokenizer = with_template(byte_tokenizer, "either")
    assert trained([called('{"city":"Paris"}')], tokenizer)[0][0] == (
        '<tool_call>look{"city":"Paris"}</tool_call><|im_end|>'
    )


def test_calls_in_both_forms_are_rendered_alike(qwen):
    first, second = called(CITY)["messages"][:3], called(CITY_TEXT)["messages"]
    (one, other, _) = trained([[*first, *second[1:]]], qwen)[0]
    assert one == other == CALLS["qwen 2.5"][1]


@pytest.mark.parametrize("arguments", ['{"city": ', "Paris", "[1]", "7"])
def test_arguments_that_are_no_json_of_a_mapping_are_refused(byte_tokenizer, arguments):
    tokenizer = with_template(byte_tokenizer, "items")
    with pytest.raises(DataError, match=r"samples\[1\].*(arguments|pairs from a mapping|no attribute 'items')"):
        trained([called(CITY), called(arguments)], tokenizer)


def test_other_forms_of_calls_are_read_as_tool_calls_or_refused(qwen):
    talk = called(CITY)["messages"]
    old = {"role": "assistant", "content": None, "function_call": {"name": "look", "arguments": CITY_TEXT}}
    as_json = {**talk[1], "tool_calls": json.dumps(talk[1]["tool_calls"])}
    for message in (old, as_json):
        assert trained([[talk[0], message, *talk[2:]]], qwen) == trained([talk], qwen)
    for calls, wrong in (("{", "which is no JSON"), ("7", "must be a list of calls"), ([["look"]], "list of calls")):
        with pytest.raises(DataError, match=rf"samples\[0\]\[1\]: 'tool_calls' is .*{wrong}"):
            trained([[talk[0], {**talk[1], "tool_calls": calls}]], qwen)


# ShareGPT with tools.

SCHEMA = {"name": "look", "description": "Look.", "parameters": {"type": "object", "properties": {"city": {}}}}


def test_calls_and_results_of_sharegpt_go_through_the_template(qwen):
    call = f'{{"name": "look", "arguments": {CITY_TEXT}}}'
    said = {"human": "why ?", "function_call": call, "observation": "sun", "gpt": "the cat"}
    talk = [{"from": speaker, "value": text} for speaker, text in said.items()]
    wrapped = {"type": "function", "function": SCHEMA}
    expected = called(CITY, tools=[wrapped])
    for tools in ([SCHEMA], json.dumps([SCHEMA]), [wrapped], json.dumps([wrapped]), [json.dumps(SCHEMA)]):
        row = {"conversations": talk, "tools": tools}
        assert build("samples", [row], qwen) == build("samples", [expected], qwen)
    assert trained([row], qwen) == [[CALLS["qwen 2.5"][1], "the cat<|im_end|>"]]
    (prompt,) = build("prompts", [{"conversations": talk[:3], "tools": [SCHEMA]}], qwen)
    assert CALLS["qwen 2.5"][1] in prompt.text
    assert "<tool_response>\nsun\n</tool_response>" in prompt.text
    assert json.dumps([wrapped]) in prompt.text
    two = [*talk[:1], {"from": "function_call", "value": '[{"name": "look"}, {"name": "look", "arguments": {"a": 1}}]'}]
    assert trained([{"conversations": two}], qwen)[0][0].count("<tool_call>") == 2


@pytest.mark.parametrize("value", ["look(Paris)", "7", "[]", '{"arguments": {}}', '["look"]'])
def test_a_call_of_sharegpt_that_is_no_json_is_refused(qwen, value):
    row = {"conversations": [{"from": "human", "value": "why ?"}, {"from": "function_call", "value": value}]}
    with pytest.raises(
        DataError, match=r"samples\[0\]\['conversations'\]\[1\]: 'value' is .* must be a call of a tool"
    ):
        build("samples", [row], qwen)


# Arrow's nulls, and the same rows from every file.

ONE = {"type": "function", "function": {"name": "one", "parameters": {"properties": {"aa": {"type": "string"}}}}}
TWO = {"type": "function", "function": {"name": "two", "parameters": {"properties": {"bb": {"type": "string"}}}}}


def use(tool, arguments):
    call = {"type": "function", "function": {"name": tool["function"]["name"], "arguments": arguments}}
    return [user("why ?"), {"role": "assistant", "content": "", "tool_calls": [call]}]


USES = [{"messages": use(ONE, {"aa": "x"}), "tools": [ONE]}, {"messages": use(TWO, {"bb": "y"}), "tools": [TWO]}]
PREFERRED = [
    {"prompt": row["messages"][:1], "chosen": row["messages"][1:], "rejected": [assistant("no")], "tools": row["tools"]}
    for row in USES
]
LABELLED = [
    {"prompt": row["prompt"], "completion": row["chosen"], "label": i == 0, "tools": row["tools"]}
    for i, row in enumerate(PREFERRED)
]
ASKED = [{"prompt": row["messages"], "tools": row["tools"]} for row in USES]
ROWS = {"samples": USES, "prompts": ASKED, "preferences": PREFERRED, "unpaired": LABELLED}


def write_jsonl(rows, path):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def write_csv(rows, path):
    cells = [{key: each if isinstance(each, str) else json.dumps(each) for key, each in row.items()} for row in rows]
    pd.DataFrame(cells).to_csv(path, index=False)
    return str(path)


def write_parquet(rows, path):
    datasets.Dataset.from_list(rows).to_parquet(str(path))
    return str(path)


FORMATS = {
    "jsonl": lambda rows, folder: write_jsonl(rows, folder / "rows.jsonl"),
    "csv": lambda rows, folder: write_csv(rows, folder / "rows.csv"),
    "parquet": lambda rows, folder: write_parquet(rows, folder / "rows.parquet"),
    "dataset": lambda rows, _: datasets.Dataset.from_list(rows),
    "frame": lambda rows, _: pd.DataFrame(rows),
    "frame of parquet": lambda rows, folder: pd.read_parquet(write_parquet(rows, folder / "rows.parquet")),
    "records of parquet": lambda rows, folder: pd.read_parquet(
        write_parquet(rows, folder / "rows.parquet")
    ).to_dict("records"),
}  # fmt: skip


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("make", ROWS)
def test_every_file_format_gives_the_same_tokens_whatever_keys_other_rows_have(qwen, tmp_path, make, name):
    rows = ROWS[make]
    expected, made = build(make, rows, qwen), build(make, FORMATS[name](rows, tmp_path), qwen)
    if make == "prompts":
        assert [each.text for each in made] == [each.text for each in expected]
        assert [each.tokens for each in made] == [each.tokens for each in expected]
        assert [each.messages for each in made] == [each.messages for each in expected]
    else:
        assert made == expected
    assert "null" not in "".join(text_of(each, qwen) for each in expected if hasattr(each, "tokens"))


def test_whole_numbers_that_pandas_made_floats_in_a_call_are_named(qwen, tmp_path, capsys):
    rows = [called({"a": 1}), called({"b": 2})]
    path = write_parquet(rows, tmp_path / "rows.parquet")
    expected = build("samples", rows, qwen)
    for source in (path, pd.read_parquet(path, dtype_backend="pyarrow"), pd.DataFrame(rows)):
        assert build("samples", source, qwen) == expected
    assert "as floats" not in capsys.readouterr().err
    (first, _) = build("samples", pd.read_parquet(path), qwen)
    assert '"arguments": {"a": 1.0}' in text_of(first, qwen)
    (line,) = [each for each in capsys.readouterr().err.splitlines() if "as floats" in each]
    assert "samples[0]: the arguments of a call of a tool are {'a': 1.0, 'b': None}" in line
    assert "dtype_backend='pyarrow'" in line


def test_a_null_key_equals_a_missing_key_at_every_depth(qwen):
    def with_nulls(value):
        if isinstance(value, dict):
            return {key: with_nulls(each) for key, each in value.items()} | {"more": None}
        return [with_nulls(each) for each in value] if isinstance(value, list) else value

    for make, rows in ROWS.items():
        made, expected = build(make, [with_nulls(row) for row in rows], qwen), build(make, rows, qwen)
        if make == "prompts":
            made, expected = ([(each.tokens, each.messages) for each in both] for both in (made, expected))
        assert made == expected


# Messages in other dialects.

DIALECTS = {
    "a text as JSON": json.dumps(TALK[:2]),
    "another key of the text": [{"role": each["role"], "text": each["content"]} for each in TALK[:2]],
    "value": [{"role": each["role"], "value": each["content"]} for each in TALK[:2]],
    "sharegpt as JSON": json.dumps(as_sharegpt(TALK[:2])),
    "numpy": np.array([{"role": each["role"], "content": each["content"]} for each in TALK[:2]], dtype=object),
}
PARTS = {
    "value": lambda text: [{"type": "text", "value": text}],
    "content": lambda text: [{"type": "text", "content": text}],
    "responses": lambda text: [{"type": "input_text", "text": text}],
    "numpy": lambda text: np.array([{"type": "text", "text": text}], dtype=object),
    "nulls": lambda text: [{"type": "text", "text": text, "image_url": None}],
}


@pytest.mark.parametrize("dialect", DIALECTS)
def test_messages_in_other_dialects_are_read(chatml, dialect):
    messages = DIALECTS[dialect]
    assert build("samples", [{"messages": messages}], chatml) == build("samples", [TALK[:2]], chatml)
    (prompt,) = build("prompts", [{"prompt": messages}], chatml)
    (expected,) = build("prompts", [{"prompt": TALK[:2]}], chatml)
    assert (prompt.tokens, prompt.messages) == (expected.tokens, expected.messages)


@pytest.mark.parametrize("name", PARTS)
def test_parts_in_other_dialects_are_texts(chatml, name):
    chatml.chat_template = CHATML.replace(
        "{{ m.content }}", "{% for p in m.content %}{{ p.text }}{% endfor %}"
    )  # fmt: skip
    talk = [{"role": each["role"], "content": PARTS[name](each["content"])} for each in TALK[:2]]
    assert trained([{"messages": talk}], chatml) == [["BAD<|im_end|>"]]
    (sample,) = build("samples", [{"messages": talk}], chatml)
    assert text_of(sample, chatml) == "<|im_start|>user\nwhy ?<|im_end|>\n<|im_start|>assistant\nBAD<|im_end|>\n"


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([], r"samples\[1\]\['messages'\]: is empty, and a conversation has at least one message; remove the row"),
        ("[]", r"samples\[1\]\['messages'\]: is empty"),
        ("", r"samples\[1\]\['messages'\]: is empty"),
        (None, r"samples\[1\]\['messages'\]: is empty \(null"),
        ("[{'role': 'user'}]", r"samples\[1\]\['messages'\]: is .*, a text that is no JSON .*json.dumps"),
        ([{"content": "a"}], r"samples\[1\]\['messages'\]\[0\]: is {'content': 'a'} \(dict\); a message is {role, con"),
        ([user("a"), "b"], r"samples\[1\]\['messages'\]\[1\]: is 'b' \(str\); a message is {role, content}"),
        (7, r"samples\[1\]\['messages'\]: is 7 \(int\); it must be a list of {role, content}"),
        ({"role": "user"}, r"samples\[1\]\['messages'\]: is {'role': 'user'} \(dict\); it must be a list"),
    ],
)
def test_what_is_no_conversation_is_named_with_its_place(chatml, value, message):
    with pytest.raises(DataError, match=message):
        build("samples", [{"messages": TALK}, {"messages": value}], chatml)


def test_a_prompt_that_is_a_list_of_other_mappings_is_named_with_its_place(chatml):
    with pytest.raises(DataError, match=r"prompts\[0\]\['prompt'\]\[1\]: is {'content': 'a'} \(dict\); a message is"):
        build("prompts", [{"prompt": [user("a"), {"content": "a"}]}], chatml)


# Images and other media.

MEDIA = {
    "images": ["1.jpg"],
    "image": "1.jpg",
    "videos": ["1.mp4"],
    "video": "1.mp4",
    "audios": ["1.wav"],
    "audio": {"path": "1"},
}
OF_EACH = {
    "samples": {"messages": TALK}, "prompts": {"prompt": [user("why ?")]}, "stepwise": {
        "prompt": "why ?", "completions": ["a"], "labels": [True],
    }, "preferences": {"prompt": [user("why ?")], "chosen": [assistant("a")], "rejected": [assistant("b")]},
    "unpaired": {"prompt": [user("why ?")], "completion": [assistant("a")], "label": True},
}  # fmt: skip


@pytest.mark.parametrize("make", OF_EACH)
@pytest.mark.parametrize("column", MEDIA)
def test_images_and_other_media_beside_a_model_of_texts_are_refused(chatml, make, column):
    row = OF_EACH[make]
    what = "prompts" if make == "prompts" else "samples"
    with pytest.raises(DataError, match=rf"{what}\[1\]: has the column '{column}' .* which this model does not read"):
        build(make, [row, {**row, column: MEDIA[column]}], chatml)
    for empty in (None, [], "", float("nan")):
        assert len(build(make, [{**row, column: empty}], chatml)) == 1
    if make == "prompts":  # a column that only rewards read has another name
        (prompt,) = build(make, [{**row, column: MEDIA[column]}], chatml, columns={"of_rewards": column})
        assert prompt.columns == {"of_rewards": MEDIA[column]}


@pytest.mark.parametrize("column", MEDIA)
def test_media_within_a_message_are_refused(chatml, column):
    with pytest.raises(DataError, match=r"samples\[0\]: a message \('user'\) (shows an image|has)"):
        build("samples", [[{**TALK[0], column: MEDIA[column]}, TALK[1]]], chatml)


@pytest.mark.parametrize("kind", ["image", "image_url", "video", "input_audio", "audio_url", "file"])
def test_parts_with_media_are_refused(chatml, kind):
    content = [{"type": "text", "text": "why ?"}, {"type": kind, kind: "1"}]
    for make, row in OF_EACH.items():
        if make != "stepwise":
            key = "messages" if make == "samples" else "prompt"
            changed = {**row, key: [{"role": "user", "content": content}, *row[key][1:]]}
            with pytest.raises(DataError, match=r"\[0\]: a message \('user'\) (shows an image|has)"):
                build(make, [changed], chatml)


def test_a_part_of_a_type_that_nothing_reads_is_refused(chatml):
    use = {"type": "tool_use", "name": "look", "input": {"city": "Paris"}}
    with pytest.raises(DataError, match=r"samples\[0\]: message 1 \(assistant\): has a part of the type 'tool_use'"):
        build("samples", [[TALK[0], {"role": "assistant", "content": [use]}]], chatml)


# Alpaca, Dolly, system prompts.

ALPACA = {"instruction": "why ?", "output": "the cat"}
MORE = [user("why ?\n\nthe mat"), assistant("the cat")]
BEFORE = [user("a ?"), assistant("a ."), user("b ?"), assistant("b .")]
HISTORY = [["a ?", "a ."], ["b ?", "b ."]]


@pytest.mark.parametrize(
    ("row", "messages"),
    [
        ({**ALPACA, "input": "the mat"}, MORE),
        ({"instruction": "why ?", "context": "the mat", "response": "the cat", "category": "qa"}, MORE),
        ({**ALPACA, "input": "", "context": "the mat"}, MORE),
        ({**ALPACA, "input": float("nan")}, [user("why ?"), assistant("the cat")]),
        ({**ALPACA, "context": None}, [user("why ?"), assistant("the cat")]),
        ({**ALPACA, "system": "Be kind."}, [HELPFUL, user("why ?"), assistant("the cat")]),
        ({**ALPACA, "system_prompt": "Be kind."}, [HELPFUL, user("why ?"), assistant("the cat")]),
        ({**ALPACA, "history": HISTORY}, [*BEFORE, user("why ?"), assistant("the cat")]),
        ({**ALPACA, "history": json.dumps(HISTORY)}, [*BEFORE, user("why ?"), assistant("the cat")]),
        (
            {**ALPACA, "history": np.array([*map(np.array, HISTORY)], dtype=object)},
            [*BEFORE, user("why ?"), assistant("the cat")],
        ),
        ({**ALPACA, "history": [], "input": "the mat"}, MORE),
        (
            {**ALPACA, "history": HISTORY, "input": "the mat", "system": "Be kind."}, [HELPFUL, *BEFORE, *MORE],
        ),
    ],
)  # fmt: skip
def test_alpaca_and_dolly_are_conversations_with_what_belongs_to_them(chatml, row, messages):
    assert build("samples", [row], chatml) == build("samples", [messages], chatml)
    (prompt,) = build("prompts", [row], chatml)
    assert prompt.messages == messages[:-1]
    asked = {key: value for key, value in row.items() if key not in ("output", "response")}
    pair = {"prompt": messages[:-1], "chosen": messages[-1:], "rejected": [assistant("no")]}
    made = build("preferences", [{**asked, "chosen": "the cat", "rejected": "no"}], chatml)
    assert made == build("preferences", [pair], chatml)


def test_alpaca_without_a_template_has_headings(byte_tokenizer):
    first = "Be kind.\n\n### Instruction:\na ?\n\n### Response:\n"
    last = "\n\n### Instruction:\nwhy ?\n\n### Input:\nthe mat\n\n### Response:\n"
    row = {**ALPACA, "context": "the mat", "system": "Be kind.", "history": HISTORY[:1]}
    assert build("samples", [row], byte_tokenizer) == build(
        "samples", [[first, "a .", last, "the cat"]], byte_tokenizer
    )
    (prompt,) = build("prompts", [row], byte_tokenizer)
    assert prompt.text == f"{first}a .{last}"


@pytest.mark.parametrize("history", ["a ? a .", [["a ?"]], [["a ?", "a .", "b ?"]], [["a ?", 7]], {"a ?": "a ."}, 7])
def test_another_history_of_alpaca_is_refused(chatml, history):
    with pytest.raises(
        DataError, match=r"samples\[0\]\['history'\]: is .* must be a list of \[instruction, output\] pa"
    ):
        build("samples", [{**ALPACA, "history": history}], chatml)


@pytest.mark.parametrize("key", ["system", "system_prompt"])
def test_a_system_prompt_beside_a_conversation_comes_first(chatml, key, capsys):
    talk, asked, good, bad = TALK[:2], [user("why ?")], [assistant("the cat")], [assistant("no")]
    compared = {"prompt": [HELPFUL, *asked], "chosen": good, "rejected": bad}
    judged = {"prompt": [HELPFUL, *asked], "completion": good, "label": True}
    cases = [
        ("samples", {"messages": talk}, {"messages": [HELPFUL, *talk]}),
        ("samples", {"conversations": as_sharegpt(talk)}, {"messages": [HELPFUL, *talk]}),
        ("samples", {"prompt": asked, "completion": good}, {"prompt": [HELPFUL, *asked], "completion": good}),
        ("preferences", {"prompt": asked, "chosen": good, "rejected": bad}, compared),
        ("preferences", {"chosen": asked + good, "rejected": asked + bad}, compared),
        ("preferences", {"prompt": "why ?", "chosen": asked + good, "rejected": asked + bad}, compared),
        ("unpaired", {"prompt": asked, "completion": good, "label": True}, judged),
    ]  # fmt: skip
    for make, row, expected in cases:
        assert build(make, [{**row, key: "Be kind."}], chatml) == build(make, [expected], chatml)
        same = {name: [HELPFUL, *value] if name == "messages" else value for name, value in row.items()}
        assert build(make, [{**same, key: "Be kind."}], chatml) == build(make, [expected], chatml)
        assert build(make, [{**row, key: ""}], chatml) == build(make, [row], chatml)
    (prompt,) = build("prompts", [{"prompt": asked, key: "Be kind."}], chatml)
    assert prompt.messages == [HELPFUL, *asked]
    pair = {"prompt": "why ?", "chosen": "the cat", "rejected": "no", key: "Be kind."}
    assert build("preferences", [pair], chatml, as_messages=True) == build("preferences", [compared], chatml)
    assert "not read" not in capsys.readouterr().err
    build("preferences", [pair], chatml)  # texts have no place for it
    assert f"samples: keys of rows are not read: '{key}' (row 0)" in capsys.readouterr().err
    build("samples", [{"messages": [HELPFUL, *talk], key: "Be rude."}], chatml)
    assert f"samples: keys of rows are not read: '{key}' (row 0)" in capsys.readouterr().err


# Keys that nothing reads.

UNREAD = {
    "samples": [{"messages": TALK}, {"prompt": "a", "output": "b"}, {"text": "a b"}, ALPACA],
    "preferences": [OF_EACH["preferences"], {"chosen": TALK[:2], "rejected": [TALK[0], TALK[3]], "margin": 1.0}],
    "unpaired": [OF_EACH["unpaired"], OF_EACH["preferences"]],
    "stepwise": [OF_EACH["stepwise"]],
}


@pytest.mark.parametrize("make", UNREAD)
def test_keys_of_rows_that_nothing_reads_are_named_once_with_their_rows(chatml, make, capsys):
    for row in UNREAD[make]:
        build(make, [row] * 6, chatml)
        assert "not read" not in capsys.readouterr().err
        rows = [{**row, "zeta": i, "eta": "x" if i == 2 else None, "iota": [i] if i else []} for i in range(6)]
        assert build(make, rows, chatml) == build(make, [row] * 6, chatml)
        said = capsys.readouterr().err
        assert (
            "keys of rows are not read: 'zeta' (all 6 rows), 'iota' (rows 1, 2, 3 and 2 more), 'eta' (row 2); they"
            in said
        )
        assert said.count("not read") == 1


@pytest.mark.parametrize(
    ("make", "row", "key"),
    [
        ("samples", {"prompt": "a", "output": "b", "messages": TALK}, "messages"),
        ("samples", {"prompt": "a", "prompt_id": "7", "messages": TALK}, "prompt"),
        ("samples", {"messages": TALK, "chosen": "a"}, "chosen"),
        ("samples", {"prompt": "a", "output": "b", "tools": [LOOK_UP]}, "tools"),
        ("samples", {"question": "a", "output": "b", "context": "c"}, "context"),
        ("samples", {**ALPACA, "input": "a", "context": "b"}, "context"),
        ("samples", {"prompt": "a", "output": "b", "system": "Be kind."}, "system"),
        ("samples", {"prompt": "a", "output": "b", "history": HISTORY}, "history"),
        ("preferences", {"prompt": "a", "chosen": "b", "rejected": "c", "score_chosen": 7.0}, "score_chosen"),
        ("preferences", {"prompt": "a", "chosen": "b", "rejected": "c", "label": "b"}, "label"),
        ("preferences", {"prompt": "a", "prompt_ids": [1], "chosen_ids": [2], "rejected_ids": [3]}, "prompt"),
        ("unpaired", {"prompt": "a", "chosen": "b", "rejected": "c", "margin": 1.0}, "margin"),
        ("stepwise", {**OF_EACH["stepwise"], "system": "Be kind."}, "system"),
    ],
)
def test_a_known_key_that_another_form_takes_the_place_of_is_named(chatml, make, row, key, capsys):
    build(make, [row], chatml, columns={"prompt": "question"} if "question" in row else {})
    assert f"'{key}' (row 0)" in capsys.readouterr().err


@pytest.mark.parametrize("key", ["context", "history", "system", "input"])
def test_parts_of_a_prompt_that_stay_columns_are_named(chatml, key, capsys):
    (prompt,) = build("prompts", [{"prompt": "why ?", "answer": "7", key: "the mat"}], chatml)
    assert prompt.columns == {"answer": "7", key: "the mat"}
    said = capsys.readouterr().err
    assert f"prompts: keys of rows are not read: '{key}' (row 0); they are no part of the prompts" in said
    assert "'answer'" not in said


@pytest.mark.parametrize("make", ["samples", "prompts", "preferences", "unpaired"])
def test_keys_of_messages_parts_and_calls_that_the_template_does_not_name_are_named(byte_tokenizer, make, capsys):
    tokenizer = tokenizer_for(byte_tokenizer, FAMILIES["qwen 2.5"])
    call = {"id": "c", "type": "function", "zeta": 1, "function": {"name": "look", "arguments": CITY, "eta": 2}}
    talk = [{**TALK[0], "iota": "x"}, {"role": "assistant", "content": "", "tool_calls": [call], "name": "Ann"}]
    talk[0]["content"] = [{"type": "text", "text": "why ?", "theta": 3}]
    tokenizer.chat_template = tokenizer.chat_template.replace(
        "{{ m.content }}", "{{ m.content if m.content is string else m.content[0].text }}"
    )
    row = {
        "samples": {"messages": talk}, "prompts": {"prompt": [*talk, user("so ?")]},
        "preferences": {"prompt": talk[:1], "chosen": talk[1:], "rejected": [assistant("no")]},
        "unpaired": {"prompt": talk[:1], "completion": talk[1:], "label": True},
    }[make]  # fmt: skip
    build(make, [row, row], tokenizer)
    said = capsys.readouterr().err
    what = "prompts" if make == "prompts" else "samples"
    for place, keys in (
        ("messages", ("iota", "name")),
        ("tool calls", ("zeta", "eta")),
        ("parts of messages", ("theta",)),
    ):
        shown = ", ".join(f"'{key}' (all 2 rows)" for key in keys)
        assert f"{what}: keys of {place} are not read: {shown}; neither rlcore nor the chat template" in said
    arguments = "{{ c.function.arguments | tojson }}"
    tokenizer.chat_template = tokenizer.chat_template.replace(
        "{{ m.content if", "{{ m.iota }}{{ m.content[0].theta if m.content is not string }}{{ m.content if"
    ).replace(arguments, arguments + "{{ m.name }}{{ c.zeta }}{{ c.function.eta }}")
    build(make, [row, row], tokenizer)
    assert "not read" not in capsys.readouterr().err


def test_a_stream_names_a_key_once_and_not_in_every_step(char_tokenizer, capsys):
    rows = datasets.Dataset.from_list(
        [{"prompt": "a", "output": "b", "zeta": i} for i in range(6)]
    ).to_iterable_dataset()

    def read(given, what):
        return build_samples(given, char_tokenizer, DataConfig(), max_length=0, what=what)

    stream = SampleStream(rows, read)
    for _ in range(4):
        stream.take_within_pass(2)
    said = capsys.readouterr().err
    assert said.count("samples: keys of rows are not read: 'zeta' (rows 0, 1)") == 1
    assert said.count("not read") == 1


# Answers without text.

EMPTY = {
    "messages": ([user("why ?")], [assistant("")], [assistant("no")]),
    "white space": ([user("why ?")], [assistant(" \n")], [assistant("no")]),
    "whole conversations": (None, [user("why ?"), assistant("")], [user("why ?"), assistant("no")]),
    "parts": ([user("why ?")], [{"role": "assistant", "content": []}], [assistant("no")]),
    "text": ("why ?", "", "no"),
    "text after a space": ("the ", "", "cat"),  # of which the other answer takes the prompt's last token
    "text after a word": ("the", "", " cat"),
    "text after a line break": ("the\n", "", "\ncat"),
}


@pytest.mark.parametrize("case", EMPTY)
def test_pairs_with_an_empty_answer_are_dropped_and_counted(chatml, case, capsys):
    prompt, empty, other = EMPTY[case]
    first = {"prompt": prompt} if prompt else {}
    third = "yes" if isinstance(other, str) else [*other[:-1], assistant("yes")]
    whole = {**first, "chosen": other, "rejected": third}
    rows = [
        whole, {**first, "chosen": empty, "rejected": other}, {**first, "chosen": other, "rejected": empty},
        {**first, "chosen": empty, "rejected": empty},
    ]  # fmt: skip
    pairs = build("preferences", rows, chatml)
    assert [flaw_of(pair) for pair in pairs] == [None, "empty_answer", "empty_answer", "empty_answer"]
    assert usable_pairs(pairs) == pairs[:1]
    assert "empty_answer=3" in capsys.readouterr().err
    empty_one, answered = pairs[1].chosen, pairs[1].rejected
    start = answered.action_mask.index(True)
    assert empty_one.tokens[:start] == answered.tokens[:start]
    if prompt:
        labelled = build("unpaired", [{"prompt": prompt, "completion": empty, "label": True}], chatml)
        assert not any(labelled[0].sample.action_mask)


# Mismatched answers of KTO.


@pytest.mark.parametrize("limit", [0, 9, 6, 5, 4])
def test_mismatched_answers_are_cut_as_the_rows_are(char_tokenizer, limit):
    rows = [{"prompt": "abc", "completion": "d", "label": True}, {"prompt": "e", "completion": "fgh", "label": False}]
    made = MAKES["unpaired"](rows, char_tokenizer, DataConfig(append_eos=False), max_length=limit)
    batch = rotated(stack_labelled([each for each in made if isinstance(each, LabelledSample)]), limit)
    tokens = [row[real].tolist() for row, real in zip(batch.tokens, batch.mask, strict=True)]
    whole = [[0, 1, 2, 5, 6, 7], [4, 3]]
    assert tokens == [ids[: limit or None] for ids in whole]
    assert batch.ended.tolist() == [not limit or limit >= 6, True]
    assert batch.action_mask.sum(1).tolist() == [min(3, (limit or 9) - 3), 1]


# Conversations of many turns.

WORDS = ["why ?", "the cat", " so ", "a\nb\n\n", "{{ x }}", "é ü", "1 2 3", "user", "the mat\t"]


def long_talk(turns, seed=0, *, tools=False, thinks=False):
    """Return a conversation of many turns, with white space around texts, calls, and repeated texts."""
    talk = []
    for k in range(turns):
        word = WORDS[(k * 7 + seed) % len(WORDS)]
        talk.append(user(f"{word}{k}" if k % 3 else word))
        if tools and k % 4 == 1:
            call = {"type": "function", "function": {"name": "look", "arguments": {"k": k, "city": word}}}
            text = "I look." if k % 8 == 1 else ""
            talk += [{"role": "assistant", "content": text, "tool_calls": [call]}, {"role": "tool", "content": word}]
        talk.append(assistant(("<think>\nhm\n</think>\n\n" if thinks else "") + f"{k} {word}"))
    return talk


def exactly(monkeypatch, rows, tokenizer, **options):
    """Return what every turn gives when it is rendered alone."""
    with monkeypatch.context() as patch:
        patch.setattr(long_chats, "LONG", 10**9)
        return build("samples", rows, tokenizer, **options)


JOINT = [name for name, family in FAMILIES.items() if family.is_joint and not family.opens_thought]


CALLING = ("qwen 2.5", "mistral", "deepseek v3")
"""Families whose templates render calls of tools beside texts."""


@pytest.mark.parametrize(
    ("name", "tools"),
    [(name, False) for name in (*JOINT, "marked")] + [(name, True) for name in JOINT if name in CALLING],
)
def test_a_long_conversation_has_the_tokens_of_its_turns_alone(byte_tokenizer, monkeypatch, name, tools):
    tokenizer = tokenizer_for(byte_tokenizer, FAMILIES["chatml" if name == "marked" else name])
    tokenizer.chat_template = MARKED if name == "marked" else tokenizer.chat_template
    talk = long_talk(24, tools=tools)
    if tools and name != "qwen 2.5":
        talk = [{**each, "content": ""} if each.get("tool_calls") else each for each in talk]
    weights = [
        {**each, "weight": int(k % 5 != 1)} if each["role"] == "assistant" else each for k, each in enumerate(talk)
    ]
    rows = [talk, {"messages": weights}, talk[1:] if name not in ("gemma", "qwen 2.5") else talk]
    expected = exactly(monkeypatch, rows, tokenizer)
    assert build("samples", rows, tokenizer) == expected
    assert sum(expected[0].action_mask) > 24


def rendered_by(tokenizer, monkeypatch, rows):
    """Return how many messages the template renders, and how many characters are tokenised."""
    counts, render, call = [0, 0], tokenizer.apply_chat_template, type(tokenizer).__call__

    def counted(messages, *args, **how):
        counts[0] += len(messages)
        return render(messages, *args, **how)

    def tokenised(self, texts, *args, **how):
        counts[1] += sum(map(len, [texts] if isinstance(texts, str) else texts))
        return call(self, texts, *args, **how)

    with monkeypatch.context() as patch:
        patch.setattr(tokenizer, "apply_chat_template", counted)
        patch.setattr(type(tokenizer), "__call__", tokenised)
        build("samples", rows, tokenizer)
    return counts


@pytest.mark.parametrize("name", ["chatml", "qwen 2.5", "llama 3", "phi 3", "marked"])
def test_the_work_grows_linearly_with_the_number_of_turns(byte_tokenizer, monkeypatch, name):
    tokenizer = tokenizer_for(byte_tokenizer, FAMILIES["chatml" if name == "marked" else name])
    tokenizer.chat_template = MARKED if name == "marked" else tokenizer.chat_template

    def talk(turns):
        return [message for k in range(turns) for message in (user(f"why {k} ?"), assistant(f"the cat {k}"))]

    small, large = (rendered_by(tokenizer, monkeypatch, [talk(turns)]) for turns in (100, 400))
    for one, other in zip(small, large, strict=True):
        assert other < 4.5 * one
    assert large[0] < 40 * 800


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("{{ '' if loop.index0 == 21 else m.content }}", "message 21 .* drops 'the cat 10' of its 'content'"),
        ("{{ m.content }}{{ '!' if loop.index0 == 21 and not loop.last }}", "message 21 .* renders it as"),
        (
            "{{ m.content }}{{ '!' if loop.length - loop.index0 == 12 }}",
            "message .* (renders it as|sampled from a prompt)",
        ),
    ],
)
def test_a_template_that_treats_one_turn_in_another_way_is_noticed(byte_tokenizer, monkeypatch, change, message):
    tokenizer = tokenizer_for(byte_tokenizer, FAMILIES["chatml"])
    tokenizer.chat_template = CHATML.replace("{{ m.content }}", change)
    talk = [message for k in range(40) for message in (user(f"why {k} ?"), assistant(f"the cat {k}"))]
    with pytest.raises(DataError, match=message):
        exactly(monkeypatch, [talk], tokenizer)
    with pytest.raises(DataError, match=message):
        build("samples", [talk], tokenizer)
