from __future__ import annotations

import json

import datasets
import pandas as pd
import pytest

import rlcore
from rlcore.errors import DataError, RLCoreError
from rlcore.settings import DataConfig
from rlcore_testing.small import make_gpt2, make_tokenizer
from rlcore_transformers.data.prompts import build_prompts
from rlcore_transformers.data.samples import build_samples
from rlcore_transformers.data.sources import load_source
from rlcore_transformers.preferences.preferences import build_preferences, build_unpaired

USER, ANSWER = {"role": "user", "content": "why ?"}, {"role": "assistant", "content": "because"}
OTHER = {"role": "assistant", "content": "the cat"}
SHAREGPT = [{"from": "human", "value": "why ?"}, {"from": "gpt", "value": "because"}]


def build(make, source, tokenizer, **options):
    return make(source, tokenizer, DataConfig(**options), max_length=0)


def test_columns_are_renamed(char_tokenizer):
    rows = [{"question": "a", "answer": "b", "prompt": "other"}]
    names = {"prompt": "question", "output": "answer"}
    assert build(build_samples, rows, char_tokenizer, columns=names) == build(
        build_samples, [["a", "b"]], char_tokenizer
    )
    (prompt,) = build(build_prompts, rows, char_tokenizer, columns={"prompt": "question", "label": "nothing"})
    assert (prompt.text, prompt.columns) == ("a", {"answer": "b"})
    swapped = build(
        build_samples,
        [{"prompt": "b", "output": "a"}],
        char_tokenizer,
        columns={"prompt": "output", "output": "prompt"},
    )
    assert swapped == build(build_samples, [["a", "b"]], char_tokenizer)
    pairs = build(
        build_preferences, [{"good": "ab", "bad": "ac"}], char_tokenizer, columns={"chosen": "good", "rejected": "bad"}
    )
    assert pairs == build(build_preferences, [{"chosen": "ab", "rejected": "ac"}], char_tokenizer)


def test_a_renamed_column_that_no_row_has_is_named(char_tokenizer):
    with pytest.raises(
        DataError,
        match=r"samples: no row has the column 'answr', .* for 'output' \(columns: 'question', 'answer'\)",
    ):
        build(build_samples, [{"question": "a", "answer": "b"}], char_tokenizer, columns={"output": "answr"})


def test_rows_of_sharegpt_are_conversations(chat_tokenizer):
    expected = build(build_samples, [[USER, ANSWER]], chat_tokenizer)
    for row in (SHAREGPT, {"conversations": SHAREGPT}, {"messages": SHAREGPT}, {"conversations": [USER, ANSWER]}):
        assert build(build_samples, [row], chat_tokenizer) == expected
    system = {"role": "system", "content": "go on"}
    whole = build(build_samples, [[system, USER, ANSWER]], chat_tokenizer)
    assert build(build_samples, [{"conversations": SHAREGPT, "system": "go on"}], chat_tokenizer) == whole
    (prompt,) = build(build_prompts, [{"conversations": SHAREGPT, "id": 3}], chat_tokenizer)
    assert prompt.messages == [USER]
    assert prompt.columns["id"] == 3


def test_preferences_of_sharegpt_and_alpaca_are_pairs(chat_tokenizer):
    expected = build(build_preferences, [{"prompt": [USER], "chosen": [ANSWER], "rejected": [OTHER]}], chat_tokenizer)
    answers = {"chosen": SHAREGPT[1], "rejected": {"from": "gpt", "value": "the cat"}}
    assert build(build_preferences, [{"conversations": SHAREGPT[:1], **answers}], chat_tokenizer) == expected
    texts = {"instruction": "why ?", "input": "", "chosen": "because", "rejected": "the cat"}
    assert build(build_preferences, [texts], chat_tokenizer) == expected
    (made,) = build(build_unpaired, [{"instruction": "why ?", "completion": "because", "label": True}], chat_tokenizer)
    assert made.sample == expected[0].chosen


def test_rows_of_alpaca_are_conversations_where_there_is_a_template(chat_tokenizer, byte_tokenizer):
    row = {"instruction": "why ?", "input": "the dog", "output": "because"}
    asked = {"role": "user", "content": "why ?\n\nthe dog"}
    assert build(build_samples, [row], chat_tokenizer) == build(build_samples, [[asked, ANSWER]], chat_tokenizer)
    (prompt,) = build(build_prompts, [row], chat_tokenizer)
    assert (prompt.messages, prompt.columns["output"]) == ([asked], "because")
    text = "### Instruction:\nwhy ?\n\n### Input:\nthe dog\n\n### Response:\n"
    assert build(build_samples, [row], byte_tokenizer) == build(build_samples, [[text, "because"]], byte_tokenizer)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ([{"from": "human", "text": "a"}], r"samples\[0\]\[0\]: is .* a message of ShareGPT is {from, value}"),
        ({"conversations": [SHAREGPT[0], {"from": "gpt", "value": None}]}, r"samples\[0\]\['conversations'\]\[1\]: is"),
        (
            {"conversations": [{"from": "narrator", "value": "a"}]},
            r"\[0\]: 'from' is 'narrator'; known speakers are human",
        ),
        ({"conversations": "why ?"}, r"samples\[0\]\['conversations'\]: is 'why \?', a text that is no JSON"),
        ({"conversations": 7}, r"samples\[0\]\['conversations'\]: is 7 \(int\); it must be a list"),
        ({"conversations": SHAREGPT[:1]}, r"samples\[0\]: no message has the role 'assistant'"),
    ],
)
def test_malformed_rows_of_sharegpt_are_named(chat_tokenizer, row, message):
    with pytest.raises(DataError, match=message):
        build(build_samples, [row], chat_tokenizer)


@pytest.fixture
def hub(tmp_path, monkeypatch):
    """A hub with one data set, org/name, with two subsets, which lies on this machine."""
    folder = tmp_path / "hub"
    for subset in ("main", "other"):
        (folder / subset).mkdir(parents=True)
        for split in ("train", "test"):
            lines = [json.dumps({"text": f"{subset} {split} {i}"}) + "\n" for i in range(3)]
            (folder / subset / f"{split}.jsonl").write_text("".join(lines))
    files = "".join(f"- config_name: {name}\n  data_dir: {name}\n" for name in ("main", "other"))
    (folder / "README.md").write_text(f"---\nconfigs:\n{files}---\n")
    load, cache = datasets.load_dataset, str(tmp_path / "cache")
    monkeypatch.setattr(
        datasets, "load_dataset", lambda _, *rest, **how: load(str(folder), *rest, cache_dir=cache, **how)
    )


def test_a_name_on_the_hub_may_have_a_subset_and_a_split(hub):
    assert load_source("org/name:main:test")[0] == {"text": "main test 0"}
    assert load_source("org/name:other:")[0] == {"text": "other train 0"}
    assert [row["text"] for row in load_source("org/name:other:train[1:]+test[:1]")] == [
        "other train 1", "other train 2", "other test 0",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("org/name:train", r"Config name is missing.*'main', 'other'.*org/name:subset:split"),
        ("org/name:main:dev", r'Unknown split "dev"'),
        ("org/name:third:train", r"'third' not found"),
        ("org/name:main:train:more", r"has 3 parts after the data set; write org/name:subset:split"),
    ],
)
def test_wrong_subsets_and_splits_are_named(hub, name, message):
    with pytest.raises(DataError, match=message):
        load_source(name)


def test_texts_become_messages_if_the_option_is_set(chat_tokenizer):
    talk, asked = [USER, ANSWER], [USER]
    texts = [["why ?", "because"], {"prompt": "why ?", "output": "because"}, talk]
    assert build(build_samples, texts, chat_tokenizer, as_messages=True) == build(
        build_samples, [talk] * 3, chat_tokenizer
    )
    prompts = build(build_prompts, ["why ?", {"prompt": "why ?"}, asked], chat_tokenizer, as_messages=True)
    assert prompts == build(build_prompts, [asked] * 3, chat_tokenizer)
    pair = {"prompt": "why ?", "chosen": "because", "rejected": "the cat"}
    messages = {"prompt": asked, "chosen": [ANSWER], "rejected": [OTHER]}
    assert build(build_preferences, [pair], chat_tokenizer, as_messages=True) == build(
        build_preferences, [messages], chat_tokenizer
    )


@pytest.mark.parametrize("row", ["why ?", {"text": "why ?"}])
def test_a_text_without_a_prompt_does_not_become_a_message(chat_tokenizer, row):
    with pytest.raises(DataError, match=r"samples\[1\]: is a text without a prompt, which data.as_messages cannot"):
        build(build_samples, [["why ?", "because"], row], chat_tokenizer, as_messages=True)


CELLS = {  # pipeline: the columns that it reads, with a value each
    build_samples: {"prompt": "ab", "output": "cd"},
    build_preferences: {"prompt": "ab", "chosen": "cd", "rejected": "ef"},
    build_unpaired: {"prompt": "ab", "completion": "cd", "label": "true"},
    build_prompts: {"prompt": "ab"},
}


@pytest.mark.parametrize("make", CELLS)
def test_an_empty_cell_is_an_error_that_names_row_and_key(tmp_path, char_tokenizer, make):
    whole = CELLS[make]
    required = whole.keys() - ({"prompt"} if make is build_preferences else {"label"})
    for key in required:
        first = {**whole, "more": "x"}
        path = tmp_path / f"{key}.csv"
        path.write_text("".join(",".join(row) + "\n" for row in (first, first.values(), {**first, key: ""}.values())))
        frame = pd.DataFrame([{**whole}, {**whole, key: None}, {**whole, key: float("nan")}])
        for source in (str(path), frame):
            with pytest.raises(DataError, match=rf"samples\[1\]\['{key}'\]: is empty \(null, or an empty cell"):
                make(source, char_tokenizer, DataConfig(), max_length=0, what="samples")


@pytest.mark.parametrize("key", ["instruction", "conversations"])
@pytest.mark.parametrize("empty", [None, float("nan")])
def test_an_empty_cell_of_sharegpt_or_alpaca_is_named(chat_tokenizer, key, empty):
    whole = {"instruction": "why", "conversations": [USER, ANSWER]}[key]
    rows = [{key: whole, "output": "yes"}, {key: empty, "output": "yes"}]
    for make in (build_samples, build_prompts):
        with pytest.raises(DataError, match=rf"samples\[1\]\['{key}'\]: is empty \(null"):
            make(rows, chat_tokenizer, DataConfig(), max_length=0, what="samples")
    with pytest.raises(DataError, match=r"samples\[0\]: has an unknown set of keys"):
        build_samples([{"prompt": "why", key: empty}], chat_tokenizer, DataConfig(), max_length=0)


@pytest.mark.parametrize("message", [{"role": "user", "content": None}, {"role": "user", "name": "x"}])
def test_a_message_without_content_is_named_in_words(chat_tokenizer, message):
    state = "is null" if "content" in message else "is missing"
    expected = rf"samples\[1\].*, message 2 \(role 'user'\): 'content' {state}, and the message has nothing else"
    talk = [USER, ANSWER]
    for make, row in (
        (build_samples, {"messages": [*talk, message, ANSWER]}),
        (build_samples, {"prompt": [*talk, message], "output": [ANSWER]}),
        (build_prompts, {"prompt": [*talk, message]}),
        (build_preferences, {"prompt": [*talk, message], "chosen": [ANSWER], "rejected": [OTHER]}),
    ):
        whole = json.loads(
            json.dumps(row), object_hook=lambda each: {**each, "content": "a"} if "role" in each else each
        )
        with pytest.raises(DataError, match=expected):
            make([whole, row], chat_tokenizer, DataConfig(), max_length=0, what="samples")
    with pytest.raises(DataError, match=r"message 1 \(assistant\): 'content' is None, so there is nothing to learn"):
        build(build_samples, [[USER, {**ANSWER, "content": None, "tool_calls": []}]], chat_tokenizer)


@pytest.mark.parametrize("num_rows", [2, 150])  # config.yaml shows short lists, and not long ones
@pytest.mark.parametrize("where", ["column", "content", "prompt", "tools"])
def test_a_row_that_contains_itself_is_named_in_words(tmp_path, where, num_rows):
    loop: list = []
    loop.append(loop)
    rows = {
        "column": {"prompt": "a", "extra": loop},
        "content": {"prompt": [{"role": "user", "content": loop}]},
        "prompt": {"prompt": loop},
        "tools": {"prompt": [USER], "tools": loop},
    }
    given = [{"prompt": "a"}] * (num_rows - 1) + [rows[where]]
    with pytest.raises(RLCoreError, match=r"deep, or contains itself|a prompt is a string|chat template|tokenizer"):
        rlcore.train(
            make_gpt2(), tokenizer=make_tokenizer(), trainer={"name": "ppo", "rollouts": 4, "batch_size": 4},
            prompts=given, reward_fn=lambda outputs: [0.0] * len(outputs), loggers=[], gen={"max_new_tokens": 2},
            run={"steps": 1, "root": str(tmp_path)},
        )  # fmt: skip
