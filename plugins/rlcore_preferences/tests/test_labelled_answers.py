"""Tests of the pipelines `unpaired` and `stepwise`."""

from __future__ import annotations

import pytest

from rlcore.errors import DataError
from rlcore.settings import DataConfig
from rlcore.types import LabelledSample, Sample, SteppedSample
from rlcore_preferences.labelled_answers import build_stepwise, build_unpaired
from rlcore_preferences.preferences import build_preferences

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


def test_conversations_are_rendered(chat_tokenizer):
    user, answer = {"role": "user", "content": "why ?"}, {"role": "assistant", "content": "the cat"}
    row = {"prompt": [user], "completion": [answer], "label": False}
    (made,) = build(build_unpaired, [row], chat_tokenizer)
    assert list(made.sample.tokens) == chat_tokenizer.apply_chat_template([user, answer], return_dict=False)
    assert not made.label


def test_the_label_of_a_step_is_at_its_last_token(char_tokenizer):
    char_tokenizer.add_tokens(["\n"])
    line = char_tokenizer.convert_tokens_to_ids("\n")
    row = {"prompt": "a", "completions": ["bc", "d"], "labels": [True, False]}
    assert build(build_stepwise, [row], char_tokenizer) == [
        SteppedSample(
            Sample((0, 1, 2, line, 3, line), (False, True, True, True, True, True)), (-100, -100, -100, 1, -100, 0)
        )
    ]
    (cut,) = build(build_stepwise, [row], char_tokenizer, max_sample_tokens=4)
    assert cut.labels == (-100, -100, -100, 1)
    assert not cut.sample.ended


WRONG = [
    (build_unpaired, {"prompt": "a", "completion": "b"}, r"samples\[0\]: 'label' is None"),
    (build_unpaired, {"prompt": "a", "completion": "b", "label": "good"}, r"samples\[0\]: 'label' is 'good'"),
    (build_unpaired, {"prompt": "a", "label": True}, r"samples\[0\]: has no key 'completion'"),
    (build_stepwise, {"prompt": "a", "completions": ["b"], "labels": []}, r"one true or false for each of 1 steps"),
    (build_stepwise, {"prompt": "a", "completions": [], "labels": []}, r"samples\[0\]: 'completions' is \[\]"),
    (build_stepwise, {"completions": ["b"], "labels": [True]}, r"samples\[0\]: 'prompt' is None"),
]


@pytest.mark.parametrize(("pipeline", "row", "message"), WRONG)
def test_a_malformed_row_is_named_with_its_index(pipeline, row, message, char_tokenizer):
    with pytest.raises(DataError, match=message):
        build(pipeline, [row], char_tokenizer)


def test_steps_are_cut_to_the_context_or_the_limit(char_tokenizer):
    row = {"prompt": "ab", "completions": ["c", "de"], "labels": [True, False]}
    for context, kept in ((6, [True]), (3, [])):
        (cut,) = build(build_stepwise, [row], char_tokenizer, max_length=context)
        assert (len(cut.sample.tokens), cut.sample.ended) == (context, False)
        assert [label for label in cut.labels if label >= 0] == kept
    (cut,) = build(build_stepwise, [row], char_tokenizer, max_length=6, max_sample_tokens=5)
    assert (len(cut.sample.tokens), len(cut.labels), cut.sample.ended) == (5, 5, False)


def test_a_row_without_a_whole_step_is_refused(char_tokenizer):
    row = {"prompt": "a", "completions": ["bcd"], "labels": [True]}
    with pytest.raises(DataError, match=r"no step ends within data.max_sample_tokens = 2"):
        build(build_stepwise, [row], char_tokenizer, max_sample_tokens=2)
