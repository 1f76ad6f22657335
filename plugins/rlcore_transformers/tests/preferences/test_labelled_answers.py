"""Tests of the pipeline `unpaired`."""

from __future__ import annotations

import pytest

from rlcore.errors import DataError
from rlcore.settings import DataConfig
from rlcore.types import Sample
from rlcore_transformers.preferences.preferences import LabelledSample, build_preferences, build_unpaired

EOS = 30  # of the character tokenizer


def build(pipeline, source, tokenizer, *, max_length=0, **options):
    return pipeline(source, tokenizer, DataConfig(**options), max_length=max_length)


def test_an_answer_keeps_its_label(char_tokenizer):
    rows = [{"prompt": "a", "completion": "b", "label": True}, {"prompt": "c", "completion": "d", "label": 0}]
    assert build(build_unpaired, rows, char_tokenizer) == [
        LabelledSample(Sample((0, 1, EOS), (False, True, True)), label=True),
        LabelledSample(Sample((2, 3, EOS), (False, True, True)), label=False),
    ]


def test_a_preference_among_unpaired_rows_is_a_pair(char_tokenizer):
    row = {"prompt": "a", "chosen": "b", "rejected": "c"}
    labelled = {"prompt": "a", "completion": "b", "label": True}
    _, pair = build(build_unpaired, [labelled, row], char_tokenizer)
    assert [pair] == build(build_preferences, [row], char_tokenizer)


def test_labelled_conversations_are_rendered_by_the_chat_template(chat_tokenizer):
    user, answer = {"role": "user", "content": "why ?"}, {"role": "assistant", "content": "the cat"}
    row = {"prompt": [user], "completion": [answer], "label": False}
    (made,) = build(build_unpaired, [row], chat_tokenizer)
    assert list(made.sample.tokens) == chat_tokenizer.apply_chat_template([user, answer], return_dict=False)
    assert not made.label


WRONG = [
    (build_unpaired, {"prompt": "a", "completion": "b"}, r"samples\[0\]: 'label' is None"),
    (build_unpaired, {"prompt": "a", "completion": "b", "label": "good"}, r"samples\[0\]: 'label' is 'good'"),
    (build_unpaired, {"prompt": "a", "label": True}, r"samples\[0\]: has no key 'completion'"),
]


@pytest.mark.parametrize(("pipeline", "row", "message"), WRONG)
def test_a_malformed_row_is_named_with_its_index(pipeline, row, message, char_tokenizer):
    with pytest.raises(DataError, match=message):
        build(pipeline, [row], char_tokenizer)
