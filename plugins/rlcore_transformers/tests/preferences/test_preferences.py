"""Tests of the pipeline `preferences`: forms of rows, implicit prompts, tokens, truncation and stacking."""

from __future__ import annotations

import copy

import pytest
from datasets import Dataset

from rlcore.checkpoints.fingerprints import fingerprint_rows
from rlcore.errors import DataError
from rlcore.settings import DataConfig
from rlcore.types import Sample
from rlcore_transformers.preferences.preferences import (
    Pair,
    build_preferences,
    split_implicit,
    stack_pairs,
    usable_pairs,
)

EOS = 30  # of the character tokenizer
USER = {"role": "user", "content": "why ?"}
GOOD, BAD = ({"role": "assistant", "content": text} for text in ("the cat", "the dog ."))


def build(source, tokenizer, *, max_length=0, **options):
    return build_preferences(source, tokenizer, DataConfig(**options), max_length=max_length)


def text_of(sample, tokenizer):
    """Return the text of the prompt and that of the answer, special tokens included."""
    start = sample.action_mask.index(True)
    end = len(sample.action_mask) - sample.action_mask[::-1].index(True)
    assert all(sample.action_mask[start:end])
    return tokenizer.decode(sample.tokens[:start]), tokenizer.decode(sample.tokens[start:end])


def test_prompt_and_answers_are_joined_and_only_answers_are_chosen(char_tokenizer):
    (pair,) = build([{"prompt": "ab", "chosen": "cd", "rejected": "e"}], char_tokenizer)
    assert pair == Pair(
        Sample((0, 1, 2, 3, EOS), (False, False, True, True, True)), Sample((0, 1, 4, EOS), (False, False, True, True))
    )


@pytest.mark.parametrize(
    ("one", "other", "prompt"),
    [
        ("it is blue", "it is black", "it is "),  # not "it is bl"
        ("abc", "abcd", ""),  # not "ab"
        ("so abc", "so abc d", "so "),  # a word stays in each answer
        ("yes ", "no", ""),  # not "yes"
        ("", "no", ""),
        ("a\u0301 b", "a\u0300 b", ""),  # an accent belongs to the letter before it
        ("H: hi\n\nA: one", "H: hi\n\nA: two", "H: hi\n\nA: "),
        ("it's so", "it's not", "it's "),
    ],
)
def test_an_implicit_prompt_ends_between_words(one, other, prompt):
    """`extract_prompt` of TRL 1.16 splits inside words, and some strings one character too early or too late."""
    assert split_implicit(one, other) == (prompt, one[len(prompt) :], other[len(prompt) :])
    assert split_implicit(other, one) == (prompt, other[len(prompt) :], one[len(prompt) :])


def test_a_token_that_spans_the_boundary_belongs_to_both_answers(byte_tokenizer):
    """The prompt's last token merges with the answer's first: TRL #1153, #1679 and #2054, ArcticTraining #72."""
    (pair,) = build([{"prompt": "the ", "chosen": "cat", "rejected": "."}], byte_tokenizer, append_eos=False)
    whole = byte_tokenizer("the cat")["input_ids"]
    alone = byte_tokenizer("the ")["input_ids"]
    assert whole[: len(alone)] != alone  # " cat" is a token
    assert list(pair.chosen.tokens) == whole
    assert list(pair.rejected.tokens) == byte_tokenizer("the .")["input_ids"]
    starts = {sample.action_mask.index(True) for sample in (pair.chosen, pair.rejected)}
    assert starts == {len(alone) - 1}


def test_a_text_has_bos_only_once(llama_tokenizer):
    """axolotl #1616 writes BOS before prompt and answer."""
    for prompt in ("the cat", "<s>the cat"):
        (pair,) = build([{"prompt": prompt, "chosen": " the dog", "rejected": " why"}], llama_tokenizer)
        for sample in (pair.chosen, pair.rejected):
            assert sample.tokens.count(1) == 1
            assert sample.tokens[0] == 1
            assert sample.tokens[-1] == 2
            assert sample.action_mask[-1]


CHATS = {
    "explicit": {"prompt": [USER], "chosen": [GOOD], "rejected": [BAD]},
    "implicit": {"chosen": [USER, GOOD], "rejected": [USER, BAD]},
    "prompt beside dialogues": {"prompt": "why ?", "chosen": [USER, GOOD], "rejected": [USER, BAD]},
    "keys filled with None": {"chosen": [{**USER, "name": None}, GOOD], "rejected": [USER, {**BAD, "tool": None}]},
}


@pytest.mark.parametrize("row", CHATS.values(), ids=CHATS)
def test_every_form_of_a_conversation_gives_the_same_pair(row, chat_tokenizer):
    (pair,) = build([row], chat_tokenizer)
    for sample, answer in ((pair.chosen, GOOD), (pair.rejected, BAD)):
        whole = chat_tokenizer.apply_chat_template([USER, answer], return_dict=False)
        head = chat_tokenizer.apply_chat_template([USER], add_generation_prompt=True, return_dict=False)
        assert list(sample.tokens) == whole
        assert sample.action_mask.index(True) == len(head)
        assert text_of(sample, chat_tokenizer)[1].startswith(answer["content"])


def test_building_pairs_does_not_change_the_callers_rows(chat_tokenizer):
    row = {**CHATS["keys filled with None"], "tools": [{"a": 1, "b": None}]}
    before = copy.deepcopy(row)
    build([row], chat_tokenizer)
    assert row == before


def test_a_template_receives_tools_and_further_variables(chat_tokenizer):
    chat_tokenizer.chat_template = "{{ tools or mood[:0] }}{{ mood }}{% for m in messages %}{{ m.content }}{% endfor %}"
    row = {**CHATS["implicit"], "tools": '[{"a": 1}]', "chat_template_kwargs": {"mood": "why"}}
    (pair,) = build([row], chat_tokenizer)
    assert text_of(pair.chosen, chat_tokenizer)[0] == "[{'a': 1}]whywhy ?"
    (pair,) = build([{**row, "tools": []}], chat_tokenizer)
    assert text_of(pair.chosen, chat_tokenizer)[0] == "whywhy ?"


def test_a_dataset_gives_the_same_pairs_as_its_rows(char_tokenizer):
    rows = [
        {"prompt": "a", "chosen": "b", "rejected": "c", "margin": 0.5},
        {"prompt": "d", "chosen": "e", "rejected": "f"},
    ]
    assert build(Dataset.from_list(rows), char_tokenizer) == build(rows, char_tokenizer)
    assert [pair.margin for pair in build(rows, char_tokenizer)] == [0.5, None]


WRONG = {
    "no chosen": ({"prompt": "a", "rejected": "b"}, r"samples\[1\]: has no key 'chosen' \(keys: .prompt."),
    "a number": ({"prompt": "a", "chosen": 1, "rejected": "b"}, r"samples\[1\]: 'chosen' is 1 \(int\)"),
    "no messages": ({"chosen": [], "rejected": [USER]}, r"samples\[1\]: 'chosen' is \[\] \(list\)"),
    "mixed rows": ({"prompt": [USER], "chosen": [GOOD], "rejected": [BAD]}, r"samples\[1\]: is a conversation, but"),
    "mixed keys": ({"prompt": [USER], "chosen": "a", "rejected": "b"}, r"samples\[1\]: 'prompt' is a list of messages"),
    "mixed answers": ({"chosen": "a", "rejected": [USER]}, r"samples\[1\]: one of 'chosen' and 'rejected'"),
    "no shared message": (
        {"prompt": "why", "chosen": [GOOD], "rejected": [BAD]}, r"samples\[1\]: 'prompt' is a string, and the answers"
    ),
    "margin below 0": ({"chosen": "a", "rejected": "b", "margin": -1}, r"samples\[1\]: 'margin' is -1"),
    "no mapping": ("ab", r"samples\[1\]: is 'ab' \(str\); a row must be a mapping"),
}  # fmt: skip


@pytest.mark.parametrize(("row", "message"), WRONG.values(), ids=WRONG)
def test_a_malformed_row_is_named_with_its_index(row, message, chat_tokenizer, char_tokenizer):
    """`is_conversational` of TRL 1.16 looks at an arbitrary key: mixed rows change meaning between processes."""
    tokenizer = chat_tokenizer if "mixed" in message or "messages" in message else char_tokenizer
    with pytest.raises(DataError, match=message):
        build([{"prompt": "a", "chosen": "b", "rejected": "c"}, row], tokenizer, max_length=10)


def test_prompts_are_cut_on_the_left_and_answers_on_the_right(char_tokenizer):
    """TRL #2209 cuts the wrong tokens of a pair."""
    row = {"prompt": "abcd", "chosen": "efgh", "rejected": "i"}
    (pair,) = build([row], char_tokenizer, max_prompt_tokens=2, max_sample_tokens=4)
    mask = (False, False, True, True)
    assert pair.chosen == Sample((2, 3, 4, 5), mask, ended=False, has_whole_prompt=False)
    assert pair.rejected == Sample((2, 3, 8, EOS), mask, has_whole_prompt=False)


def test_empty_and_equal_answers_are_dropped_and_counted(char_tokenizer, capsys):
    rows = [
        {"prompt": "ab", "chosen": "c", "rejected": "d"}, {"prompt": "ab", "chosen": "", "rejected": "d"},
        {"prompt": "ab", "chosen": "c", "rejected": "c"}, {"prompt": "abcd", "chosen": "e", "rejected": "f"},
        {"prompt": "ab", "chosen": "c", "rejected": "c", "label": "tie"},
        {"prompt": "ab", "chosen": "c", "rejected": "defg"},
    ]  # fmt: skip
    pairs = build(rows, char_tokenizer, max_sample_tokens=4)
    assert usable_pairs(pairs) == [pairs[0], pairs[4], pairs[5]]
    assert "empty_answer=2" in (said := capsys.readouterr().err)
    assert "equal_answers=1" in said
    assert usable_pairs(pairs, whole=True) == [pairs[0], pairs[4]]
    assert "truncated=2" in capsys.readouterr().err
    with pytest.raises(DataError, match=r"eval_samples: none of the 1 pairs can be learned from \(equal answers: 1\)"):
        usable_pairs(pairs[2:3], "eval_samples")


def test_pairs_are_cut_to_the_context_and_counted(char_tokenizer, capsys):
    rows = [
        {"prompt": "ab", "chosen": "cdef", "rejected": "g"}, {"prompt": "abcde", "chosen": "f", "rejected": "g"},
        {"prompt": "a", "chosen": "b", "rejected": "c"},
    ]  # fmt: skip
    for limit in (0, 9):
        pairs = build(rows, char_tokenizer, max_length=5, max_sample_tokens=limit)
        assert pairs[0].chosen == Sample((0, 1, 2, 3, 4), (False, False, True, True, True), ended=False)
        assert usable_pairs(pairs) == [pairs[0], pairs[2]]
        assert "empty_answer=1" in (said := capsys.readouterr().err)
        assert said.count("cut=1") == 1
    assert usable_pairs(pairs, whole=True) == [pairs[2]]
    assert "cut=" not in capsys.readouterr().err


def test_stacked_pairs_alternate_and_have_margins_and_ties(char_tokenizer):
    rows = [{"prompt": "a", "chosen": "b", "rejected": "cd"}, {"prompt": "e", "chosen": "f", "rejected": "g"}]
    plain = stack_pairs(build(rows, char_tokenizer))
    assert plain.tokens[:, 0].tolist() == [0, 0, 4, 4]
    assert plain.tokens[plain.action_mask].tolist() == [1, EOS, 2, 3, EOS, 5, EOS, 6, EOS]
    assert plain.ended.all()
    assert not plain.columns
    further = [{**rows[0], "margin": 2}, {**rows[1], "label": "tie"}]
    batch = stack_pairs(build(further, char_tokenizer))
    assert batch["margins"].tolist() == [2, 2, 0, 0]
    assert batch["ties"].tolist() == [False, False, True, True]


def test_pairs_that_differ_have_different_fingerprints(char_tokenizer):
    row = {"prompt": "a", "chosen": "b", "rejected": "cd"}
    rows = [row, {**row, "chosen": "c"}, {**row, "margin": 1.0}, {"prompt": "a", "chosen": "cd", "rejected": "b"}]
    prints = [fingerprint_rows(build([each], char_tokenizer)) for each in rows]
    assert len(set(prints)) == 4
    assert prints[0] == fingerprint_rows(build([row], char_tokenizer))


def test_a_conversation_that_begins_the_other_keeps_its_last_message_as_an_answer():
    talk = [USER, GOOD, {"role": "user", "content": "and ?"}, BAD]
    for size in (1, 2, 3):
        shorter, longer = talk[:size], talk
        expected = (talk[: size - 1], talk[size - 1 : size], talk[size - 1 :])
        assert split_implicit(shorter, longer) == expected
        assert split_implicit(longer, shorter) == (expected[0], expected[2], expected[1])
    assert split_implicit(talk, talk) == (talk[:3], talk[3:], talk[3:])
